"""Where Python finds modules: a folder of the user's shadows neither the standard library nor what the runner needs.

A folder may hold a ``random.py`` or a ``torch.py``. Python looks into the current folder, and into those of PYTHONPATH,
before the standard library; here modules of the user come after it, and before other installed packages.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..records.grouping import reachable
from .used_paths import repository

if TYPE_CHECKING:
    from importlib.metadata import Distribution

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # the folder of the packages
NAMES = ("runner", "kernel_runner")  # names of this project's package
LIBRARY = os.path.dirname(os.path.realpath(os.__file__))  # Python's own
# Distributions whose modules no folder shadows, with those that they require; the first requires the others, if it is
# installed.
NEEDED = ("kernel-runner", "torch", "triton", "numpy", "hydra-core", "orjson", "pandas", "pyyaml", "rich", "wandb")


def arrange(*folders: str) -> None:
    """Let modules in ``folders`` be imported in this process, after the standard library and what the runner needs."""
    users = [*dict.fromkeys(map(os.path.abspath, folders))]
    places = [place for place in sys.path if os.path.abspath(place) not in users]
    others = [place for place in places if os.path.realpath(place) != ROOT]
    places = [*others, ROOT] if len(others) < len(places) else others  # last: its folders are not meant for users
    ends = [number for number, place in enumerate(places, 1) if os.path.realpath(place).startswith(LIBRARY)]
    ends = [end for end in ends if "-packages" not in places[end - 1]]
    at = max(ends, default=len(places))
    sys.path[:] = [*places[:at], *users, *places[at:]]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Needed)]
    sys.meta_path.insert(0, _Needed(users))


def arrange_here() -> None:
    """Do so for the current folder and its repository."""
    arrange(os.getcwd(), str(repository(os.getcwd())))


def is_reserved(name: str) -> bool:
    """Return whether the top-level module ``name`` is Python's, the runner's, or one that the runner needs."""
    return name in sys.stdlib_module_names or name in (*NAMES, *NEEDED) or name in _needed()


def is_installed(file: str | os.PathLike[str]) -> bool:
    """Return whether ``file`` is of an installed package, or Python's own."""
    path = os.path.abspath(file)
    return "site-packages" in path or "dist-packages" in path or os.path.realpath(path).startswith(f"{LIBRARY}/")


def source_of(name: str, folders: Sequence[str]) -> str | None:
    """Return the source file of the module ``name``, in ``folders`` or installed, without importing anything."""
    top, *rest = name.split(".")
    places = [PathFinder.find_spec(top, [folder]) for folder in folders]
    for spec in [*(spec for spec in places if spec and not is_reserved(top)), find_spec(top)]:
        for number in range(len(rest)):
            inside = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(".".join([top, *rest[: number + 1]]), [*inside]) if inside else None
        if spec and spec.origin and spec.origin.endswith(".py"):
            return spec.origin
    return None


class _Needed:
    """Finds this package, and the modules that it needs where a folder of the user's has others of these names."""

    def __init__(self, users: Sequence[str]) -> None:
        self._users = users

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Find a top-level module."""
        if path is not None or name in sys.stdlib_module_names:
            return None
        if name in NAMES:
            return PathFinder.find_spec(name, [ROOT])
        if PathFinder.find_spec(name, self._users) is None:
            return None
        found = PathFinder.find_spec(name, [place for place in sys.path if place not in self._users])
        return found if found and found.origin and is_reserved(name) else None


@cache
def _needed() -> frozenset[str]:
    """Return the top-level modules of NEEDED, and of what they require."""
    from importlib import metadata  # 30 ms, and it is rarely asked for

    modules, places = set[str](), [place for place in sys.path if is_installed(place)]  # no folder of a user is listed

    def required(name: str) -> Iterator[str]:
        for distribution in metadata.distributions(name=name, path=places):
            modules.update((distribution.read_text("top_level.txt") or "").split() or _modules(name, distribution))
            for line in distribution.requires or ():
                if (name == NEEDED[0] or "extra ==" not in line) and (match := re.match(r"[\w.-]+", line)):
                    yield re.sub(r"[-_.]+", "-", match[0]).lower()

    reachable(NEEDED, required)
    return frozenset(modules)


def _modules(name: str, distribution: Distribution) -> set[str]:
    """Return the top-level modules of a distribution that does not list them: that of its name, or by its files."""
    if PathFinder.find_spec(module := name.replace("-", "_")):
        return {module}
    return {os.fspath(file).partition("/")[0].removesuffix(".py") for file in distribution.files or ()}

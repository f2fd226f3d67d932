"""Files and modules that Python code looks for, including missing files and modules that are loaded already.

Functions are replaced and finders added only while it watches, so that nothing of it is left in a call that is timed.
"""

import builtins
import functools
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, ClassVar

from ..device.used_paths import MODULE
from ..implementations import loader

LISTS = ("listdir", "scandir")
REPLACED: Sequence[tuple[Any, str]] = [
    *((os, name) for name in ("stat", "lstat", "access", "open", *LISTS)),
    *((module, "open") for module in (builtins, io)),
]


class Lookups:
    """Notes ``paths``, a listed folder with ``/`` at its end, and the names of the modules that are ``imported``."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.imported = _Watched.imported
        self._noting = functools.cache(self._noting_of)  # the replacements are made once
        self._replaced: list[tuple[Any, str, Callable[..., Any]]] = []
        self._modules: Sequence[str] = ()

    def watch(self, modules: Iterable[str]) -> None:
        """Begin to note. ``modules`` are loaded already, and an import of one is noted."""
        for module, name in REPLACED:
            function = getattr(module, name)
            self._replaced.append((module, name, function))
            setattr(module, name, self._noting(function, name))
        sys.meta_path.append(self)  # last, so that it is asked only for modules that are missing
        self._modules = [*modules]
        self._set_specs(ModuleSpec, _Watched)

    def stop(self) -> None:
        """Note no more. A function that a case has replaced stays replaced."""
        for module, name, function in self._replaced:
            if getattr(module, name) is self._noting(function, name):
                setattr(module, name, function)
        self._replaced.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._set_specs(_Watched, ModuleSpec)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Note the places of a module that is missing."""
        for folder in [*sys.path, *loader.folders()] if path is None else path:
            if os.path.isabs(folder) or folder in ("", os.curdir):  # another word is a hook's
                self.paths.add(f"{os.path.abspath(folder)}/{name.rpartition('.')[2]}{MODULE}")

    def _set_specs(self, before: type[ModuleSpec], after: type[ModuleSpec]) -> None:
        for name in self._modules:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if type(spec) is before:
                spec.__class__ = after

    def _noting_of(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return ``function`` so that it notes its path, unless it opens a file to write it."""

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("path", kwargs.get("file", os.curdir))
            writes = name == "open" and _writes(*args[1:2], **kwargs)
            if isinstance(path, str | bytes | os.PathLike) and not writes and kwargs.get("dir_fd") is None:
                self.paths.add(os.path.abspath(os.fsdecode(path)) + "/" * (name in LISTS))
            return function(*args, **kwargs)

        return noted


def _writes(how: str | int = "r", **named: Any) -> bool:
    """Return whether a call of ``open`` or ``os.open``, without its path, only writes."""
    how = named.get("flags", named.get("mode", how)) if how == "r" else how
    return how[:1] in ("w", "a", "x") if isinstance(how, str) else bool(how & os.O_WRONLY)


class _Watched(ModuleSpec):
    """The spec of a loaded module. An import of the module reads ``_initializing`` of its spec, and nothing else."""

    imported: ClassVar[set[str]] = set()

    @property
    def _initializing(self) -> bool:
        self.imported.add(self.name)
        return bool(vars(self).get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value

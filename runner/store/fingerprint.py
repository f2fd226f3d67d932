"""What a row's figures hold for, beside its case: the sources that made it, and the versions of what ran them.

A row is as good as new while none of it has changed. Comments, docstrings and layout do not count; native sources count
by their bytes. Known without importing any of it: what is imported by a computed name is not seen.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from runner import implementations, measure, timing
from runner.device.processes import ROOT
from runner.experiment.case import CaseRecord

PARTS = ("sources", "versions", "device", "measure")  # what resume.ignore may name
PACKAGES = ("torch", "triton")
MEASURE = "runner/measure"
PACKAGE = ROOT / "runner"
LIFTED = ("kernels", "models")  # packages whose files the figures depend on, found beside runner/ in a checkout
NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".inl")
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
EDITED = " and edited while it ran"  # of a digest: what has been measured is neither the old nor the new
LOOK_S = 0.1  # between two looks at the same files: forty of them take 0.2 ms
MISSING = "none"  # the digest of a file that is not there


@dataclass(frozen=True)
class _Source:
    """What is to be known of a file."""

    digest: str
    imports: frozenset[str] = frozenset()  # names of modules, some of which may be names in modules
    native: bool = False  # it names native sources
    includes: tuple[str, ...] = ()


class Fingerprints:
    """The fingerprints of cases. Files are read when they are first asked for, and again when they have changed."""

    def __init__(self) -> None:
        self._sources: dict[Path, tuple[tuple[int, ...], _Source]] = {}
        self._entries: dict[str, list[Path]] = {}  # what a case names itself; a file of them may be gone for a moment
        self._first: dict[str, dict[str, str]] = {}
        self._timestamps: dict[str, dict[Path, tuple[int, ...]]] = {}  # of the files behind them
        self._looked_s: dict[str, float] = {}  # when they were last found as they were
        self._changed: dict[tuple[int, int, tuple[str, ...]], tuple[str, Mapping[str, str]]] = {}
        self._versions = versions()

    def of(self, case: CaseRecord) -> dict[str, str]:
        """Return the fingerprint of ``case`` at the first request: digests of files by path, and versions.

        Raises BadInput: what it is to run cannot be built.
        """
        name = _kind(case)
        if name not in self._first:
            paths = self._paths(case)
            self._first[name] = self._now(case, paths)
            self._timestamps[name] = {path: _timestamp(path) for path in (*paths, *_measures(_observed(case)))}
        return self._first[name]

    def changed(self, case: CaseRecord, was: Mapping[str, str], ignore: tuple[str, ...] = ()) -> str:
        """``difference`` from what is ``of`` the case, worked out once for all that share the two."""
        now = self.of(case)
        pair = id(now), id(was), ignore
        if pair not in self._changed:
            self._changed[pair] = difference(now, was, ignore), was  # which is kept, so that its id stays its own
        return self._changed[pair][0]

    def of_row(self, case: CaseRecord) -> dict[str, str]:
        """The same for a row that has just been made of ``case``; files that have changed meanwhile are marked."""
        first, name, now_s = self.of(case), _kind(case), time.monotonic()
        if now_s - self._looked_s.get(name, 0.0) < LOOK_S:
            return first
        if all(_timestamp(path) == timestamp for path, timestamp in self._timestamps[name].items()):
            self._looked_s[name] = now_s
            return first
        now = self._now(case, self._paths(case))
        return {name: text if first.get(name) == text else text + EDITED for name, text in now.items()}

    def _paths(self, case: CaseRecord) -> list[Path]:
        """Raises BadInput: when it is first asked for, a user's file is not there."""
        kind, op = _kind(case), case.workload.name
        if kind not in self._entries:
            self._entries[kind] = [*implementations.build(case.impl).sources(op), PACKAGE / "models" / f"{op}.py"]
        return self._closure(self._entries[kind])

    def _now(self, case: CaseRecord, paths: Sequence[Path]) -> dict[str, str]:
        parts = [self._source(path).digest for path in _measures(_observed(case))]
        files = {_name(path): self._source(path).digest for path in paths}
        return {**files, MEASURE: _digest("".join(parts).encode()), **self._versions}

    def _closure(self, entries: Sequence[Path]) -> list[Path]:
        """``entries`` and all that they import or include from the project, from here, PYTHONPATH or beside them."""
        seen: dict[Path, None] = {}
        waiting = [path for entry in entries for path in (entry, *_packages(entry))]
        while waiting:
            path = waiting.pop(0)
            if path not in seen:
                seen[path] = None
                source = self._source(path)
                waiting += [file for name in sorted(source.imports) for file in _files(name, _own(path))]
                included = [Path(os.path.normpath(path.parent / name)) for name in source.includes]
                waiting += [place for place in included if place.is_file()]
        if any(self._source(path).native for path in seen):
            beside = {file for path in seen if path.suffix == ".py" for file in _beside(path.parent)}
        else:
            beside = {path.with_suffix(suffix) for path in seen for suffix in NATIVE if path.suffix == ".py"}
        if more := sorted(path for path in beside - seen.keys() if path.is_file()):
            return [*seen, *(path for path in self._closure(more) if path not in seen)]
        return list(seen)

    def _source(self, path: Path) -> _Source:
        timestamp = _timestamp(path)
        if path not in self._sources or self._sources[path][0] != timestamp:
            try:
                self._sources[path] = timestamp, _read(path)
            except OSError:
                return _Source(MISSING)
        return self._sources[path][1]


def versions() -> dict[str, str]:
    """Return the versions of Python, without the patch number, and of the packages that compute."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: _version(name) for name in PACKAGES}}


def difference(now: Mapping[str, str], was: Mapping[str, str], ignore: Sequence[str] = ()) -> str:
    """Why a row with the fingerprint ``was`` is not as good as new; "" if it is. ``ignore``: of PARTS."""
    names = list(dict.fromkeys([*now, *was]))
    of = {"versions": ["python", *PACKAGES], "measure": [MEASURE]}
    of["sources"] = [name for name in names if name not in (*of["versions"], *of["measure"])]
    if not was:
        return "" if set(of) <= set(ignore) else "its row does not say what it was made with"
    changed = {part: [name for name in some if now.get(name) != was.get(name)] for part, some in of.items()}
    for part, some in changed.items():
        if part not in ignore and some:
            first, more = some[0], f" and {len(some) - 1} more" if some[1:] else ""
            if part == "versions":
                return f"{first} {was.get(first) or 'none'} is now {now.get(first) or 'none'}{more}"
            return _told(first, now, was, more)
    return ""


def _told(name: str, now: Mapping[str, str], was: Mapping[str, str], more: str) -> str:
    if name not in was:
        return f"{name}{more} has been added"
    if name not in now:
        return f"{name}{more} is not used any more"
    if was[name].endswith(EDITED):
        return f"{name}{more} was edited while it ran"
    return f"{name}{more} {'have' if more else 'has'} changed"


def _kind(case: CaseRecord) -> str:
    """Cases of one kind have one fingerprint."""
    return f"{case.workload.name} {case.impl.text} {' '.join(_observed(case))}"


def _observed(case: CaseRecord) -> tuple[str, ...]:
    return tuple(choice.name for choice in case.measures)


@cache
def _measures(names: tuple[str, ...]) -> tuple[Path, ...]:
    """What the measurements ``names`` are made of: what all share, and the folder of each that has one."""
    room, shared = Path(measure.__path__[0]), Path(timing.__path__[0])
    own = [file for name in names for file in (room / name).rglob("*.py")]
    return tuple(sorted([*room.glob("*.py"), *shared.glob("*.py"), *own]))


def _timestamp(path: Path) -> tuple[int, ...]:
    """Tells whether a file may have changed; () of one that is not there."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> _Source:
    """Raises OSError."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return _Source(_digest(content), includes=tuple(name.decode() for name in INCLUDE.findall(content)))
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return _Source(_digest(content))
    nodes = list(ast.walk(tree))
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    native = any(word.endswith(NATIVE) for word in words)
    parts: list[str] = []
    _spell(tree, parts)
    return _Source(_digest(" ".join(parts).encode()), frozenset(_imports(nodes, path)), native)


def _spell(node: object, parts: list[str]) -> None:
    """What ``node`` means, into ``parts``. Of ast.dump it differs in that it is the same in every Python."""
    if isinstance(node, ast.AST):
        parts.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(value, list) and _has_docstring(node):
                value = value[1:]
            if value is not None and value != [] and name not in ("ctx", "type_comment", "kind"):
                parts.append(name)
                _spell(value, parts)
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            _spell(item, parts)
        parts.append("]")
    else:
        parts.append(repr(node))


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not node.body:
        return False
    first = node.body[0]
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _imports(nodes: Iterable[ast.AST], path: Path) -> Iterator[str]:
    package = list(path.relative_to(ROOT).parent.parts) if path.is_relative_to(ROOT) else []
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or node.level <= 1):  # a user's file: what lies beside it
            above = package[: len(package) - node.level + 1] if node.level else []
            named = [node.module] if node.module else []
            yield from (".".join([*above, *named, alias.name]) for alias in node.names)


@cache
def _roots() -> tuple[Path, ...]:
    """Where a worker finds modules that belong to nobody's distribution, in its order."""
    named = [Path(word) for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    return tuple(dict.fromkeys([Path.cwd(), ROOT, *(path.absolute() for path in named)]))


def _own(path: Path) -> tuple[Path, ...]:
    """Where a user's file finds modules before ``_roots``, as ``impl=file`` sees to it."""
    return () if _is_ours(path) else (path.resolve().parent,)


def _is_ours(path: Path) -> bool:
    """Whether it is a module of this project, however ``path`` is written."""
    return any(
        path.is_relative_to(PACKAGE / room) or path.resolve().is_relative_to((PACKAGE / room).resolve())
        for room in ("", *LIFTED)
    )


@cache
def _files(module: str, more: tuple[Path, ...]) -> tuple[Path, ...]:
    """The files that importing ``module`` runs, its packages first; none if in neither ``more`` nor ``_roots``."""
    names = module.split(".")
    if names[0] in sys.stdlib_module_names or (names[0] == "runner" and names[1:2] not in [[name] for name in LIFTED]):
        return ()
    for root in (ROOT,) if names[0] == "runner" else (*more, *_roots()):
        found = []
        for depth in range(1, len(names) + 1):
            place = root.joinpath(*names[:depth])
            found += [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()][:1]
        if found:
            return tuple(found)
    return ()


def _packages(path: Path) -> list[Path]:
    """The ``__init__.py`` that are run before ``path`` is, if it is a module of this project."""
    if not any(path.is_relative_to(PACKAGE / name) for name in LIFTED):
        return []
    between = [folder for folder in path.parents if folder.is_relative_to(PACKAGE) and folder != PACKAGE]
    return [folder / "__init__.py" for folder in between if (folder / "__init__.py").is_file()]


def _beside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in NATIVE)
    except OSError:  # it is gone
        return []


def _name(path: Path) -> str:
    """As seen from the project, else from here, else in full."""
    for name in LIFTED:
        if path.is_relative_to(PACKAGE / name):
            return path.relative_to(PACKAGE).as_posix()
    for root in (ROOT, Path.cwd()):
        if path.absolute().is_relative_to(root):
            return path.absolute().relative_to(root).as_posix()
    return str(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

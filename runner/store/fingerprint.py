"""Fingerprints: digests of the sources, and versions of the packages, that a row is valid for.

A row of an earlier session counts while its case and its fingerprint are the same. Python sources are compared as
syntax trees, so comments, docstrings and layout do not count; native sources are compared by their bytes. No source is
imported. A module that is imported by a computed name is not seen.

Beside them stands where the code of a row comes from: its repository, its commit, and whether its files differ from it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

import runner.implementations as implementations
import runner.measure as measure
import runner.timing as timing
from runner.device.processes import ROOT, output
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import redact

PARTS = ("sources", "versions", "device", "measure")  # allowed words of resume.ignore
PACKAGES = ("torch", "triton")
MEASURE = "runner/measure"
PACKAGE = ROOT / "runner"
LIFTED = ("kernels", "models")  # rooms that stand beside runner/ in a checkout
NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".inl")
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
EDITED = " and edited while it ran"  # ends a digest: the row was made by neither the old nor the new file
MISSING = "none"  # the digest of a missing file

Timestamp = tuple[int, ...]


@dataclass(frozen=True)
class _Source:
    digest: str
    imports: frozenset[tuple[int, str]] = frozenset()  # level and dotted name, as in an import statement
    native: bool = False  # it names native sources
    includes: tuple[str, ...] = ()
    packages: frozenset[str] = frozenset()  # those of ``runner.kernels.unsupported.needs``


@dataclass(frozen=True)
class _First:
    """The fingerprint of some cases at the first request, and the files behind it."""

    own: Path  # the implementation's own file; the workload's if that is of a git revision
    paths: Sequence[Path]  # without those of the measurements
    timestamps: Mapping[str, Timestamp]
    fingerprint: dict[str, str]


class Fingerprints:
    """Compute fingerprints of cases. A file is read at the first request, and again after it has changed."""

    def __init__(self) -> None:
        self._sources: dict[Path, tuple[Timestamp, _Source]] = {}
        self._first: dict[str, _First] = {}
        python = ".".join(platform.python_version_tuple()[:2])
        self._versions = {"python": python, **{name: version(name) or "" for name in PACKAGES}}
        python_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        self._roots = [ROOT, Path.cwd(), *(Path(folder).absolute() for folder in python_path)]  # as a worker has them

    def of(self, case: CaseRecord) -> dict[str, str]:
        """Return the fingerprint of ``case`` at the first request: digests of files by path, and versions.

        Raises BadInput if the implementation cannot be built, as when a user's file is missing.
        """
        return self._first_of(case).fingerprint

    def of_row(self, case: CaseRecord) -> dict[str, str]:
        """Return the fingerprint of a new row of ``case``. Files that changed since the first request are marked."""
        first = self._first_of(case)
        if all(_timestamp(path) == timestamp for path, timestamp in first.timestamps.items()):
            return first.fingerprint
        now = self._compute(_measures(case), self._closure(first.paths))
        return {name: text if first.fingerprint.get(name) == text else text + EDITED for name, text in now.items()}

    def files(self, case: CaseRecord) -> list[Path]:
        """Return the files that ``case`` runs, the implementation's own first. Raises BadInput as ``of`` does."""
        first = self._first_of(case)
        return [first.own, *first.paths]

    def _first_of(self, case: CaseRecord) -> _First:
        measures = _measures(case)
        kind = f"{case.workload.name} {case.impl.text} {measures}"
        if kind not in self._first:
            op = case.workload.name
            model = PACKAGE / "models" / f"{op}.py"
            sources = implementations.build(case.impl).sources(op)  # a wrapper's own file comes first
            paths = self._closure([*sources, model])
            timestamps = {str(path): _timestamp(path) for path in (*paths, *_measure_files(measures))}
            self._first[kind] = _First([model, *sources][-1], paths, timestamps, self._compute(measures, paths))
        return self._first[kind]

    def _compute(self, measures: tuple[str, ...], paths: Iterable[Path]) -> dict[str, str]:
        measuring = "".join(self._source(path).digest for path in _measure_files(measures))
        sources = {path: self._source(path) for path in paths}
        files = {_name(path): source.digest for path, source in sources.items()}
        needed = sorted({package for source in sources.values() for package in source.packages})
        packages = {package: version(package) or "" for package in needed}
        return {**files, MEASURE: _digest(measuring.encode()), **self._versions, **packages}

    def _closure(self, entries: Iterable[Path]) -> list[Path]:
        """Return ``entries`` and all files that they import or include, but for installed packages and Python's own.

        If one of them names a native source, all native sources beside the Python files are included: which of them
        are compiled is known only when they are.
        """
        waiting = [Path(os.path.abspath(path)) for path in entries]
        packages = [folder / "__init__.py" for path in waiting for folder in path.parents if _is_lifted(folder)]
        waiting += [path for path in packages if path.is_file()]
        seen: dict[Path, None] = {}
        while waiting:
            while waiting:
                path = waiting.pop(0)
                if path not in seen and path.parent != PACKAGE:  # the runner's own version says nothing about a row
                    seen[path] = None
                    waiting += self._dependencies(path)
            if any(self._source(path).native for path in seen):
                folders = dict.fromkeys(path.parent for path in seen if path.suffix == ".py")
                native = (path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in NATIVE)
                waiting = [path for path in native if path not in seen]
        return list(seen)

    def _dependencies(self, path: Path) -> Iterator[Path]:
        """Yield the files that ``path`` imports or includes."""
        source = self._source(path)
        for level, name in sorted(source.imports):
            yield from _imported(name, self._roots_of(path, level, name))
        included = (Path(os.path.normpath(path.parent / name)) for name in source.includes)
        yield from (file for file in included if file.is_file())

    def _roots_of(self, path: Path, level: int, name: str) -> Sequence[Path]:
        """Return the folders in which an import of ``name`` in ``path`` is looked for; ``level`` counts leading dots.

        A user's file finds modules beside it before those on Python's path. The rest of the runner does not count.
        """
        top, _, rest = name.partition(".")
        if level:
            return path.parents[level - 1 : level]
        if top == "runner":
            return [ROOT] if rest.partition(".")[0] in LIFTED else []
        if top in sys.stdlib_module_names or top in PACKAGES or path.is_relative_to(PACKAGE):
            return []
        return [path.parent, *self._roots]

    def _source(self, path: Path) -> _Source:
        timestamp = _timestamp(path)
        if path not in self._sources or self._sources[path][0] != timestamp:
            try:
                self._sources[path] = timestamp, _read(path)
            except OSError:
                return _Source(MISSING)
        return self._sources[path][1]


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_version(name: str) -> bool:
    """Return whether an entry of a fingerprint is a version, of a package or of Python, not a digest."""
    return "." not in name and "/" not in name


def difference(now: Mapping[str, str], was: Mapping[str, str], ignore: Sequence[str] = ()) -> str:
    """Return why a row with the fingerprint ``was`` is out of date; "" if it is not. ``ignore`` has words of PARTS."""
    changed: dict[str, list[str]] = {"versions": [], "measure": [], "sources": []}
    for name in () if now == was else {**now, **was}:
        if now.get(name) != was.get(name):
            changed["versions" if is_version(name) else "measure" if name == MEASURE else "sources"].append(name)
    part, names = next(((part, names) for part, names in changed.items() if names and part not in ignore), ("", []))
    if not names:
        return ""
    first, more = names[0], f" and {len(names) - 1} more" if names[1:] else ""
    if part == "versions":
        return f"{first} {was.get(first) or 'none'} is now {now.get(first) or 'none'}{more}"
    if first not in was:
        return f"{first}{more} has been added"
    if first not in now:
        return f"{first}{more} is not used any more"
    if was[first].endswith(EDITED):
        return f"{first}{more} was edited while it ran"
    return f"{first}{more} {'have' if more else 'has'} changed"


def _measures(case: CaseRecord) -> tuple[str, ...]:
    return tuple(choice.name for choice in case.measures)


@cache
def _measure_files(measures: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files that ``measures`` consist of: those that all share, and the folder of each that has one."""
    room, shared = Path(measure.__path__[0]), Path(timing.__path__[0])
    own = [file for name in measures for file in (room / name).rglob("*.py")]
    return tuple(sorted([*room.glob("*.py"), *shared.glob("*.py"), *own]))


def _timestamp(path: Path | str) -> Timestamp:
    """Return what changes when a file changes; () for a missing file."""
    try:
        status = os.stat(path)
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
    for node in nodes:
        if (
            isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            del node.body[0]
    native = any(word.endswith(NATIVE) for word in words)
    packages = frozenset(_needed(nodes))
    return _Source(_digest(ast.unparse(tree).encode()), frozenset(_imports(nodes)), native, packages=packages)


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the level and the dotted name of each import. The last part may name something in a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, ".".join(filter(None, [node.module, alias.name]))) for alias in node.names)


def _needed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the packages of calls ``needs("package", ...)``."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "needs":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _imported(name: str, roots: Iterable[Path]) -> list[Path]:
    """Return the files that an import of ``name`` runs, its packages first, from the first of ``roots`` that has it."""
    for root in roots:
        places = [root.joinpath(*name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
        files = [
            next(filter(Path.is_file, (place / "__init__.py", place.with_suffix(".py"))), None) for place in places
        ]
        if found := [file for file in files if file]:
            return found
    return []


def _is_lifted(path: Path) -> bool:
    return any(path.is_relative_to(PACKAGE / name) for name in LIFTED)


def _name(path: Path) -> str:
    """Return ``path`` as seen from the project, else from the current folder, else in full."""
    for root in [PACKAGE] if _is_lifted(path) else [ROOT, Path.cwd()]:
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


SHORT = 8  # digits of a commit for people
USER = re.compile(r"(?<=://)[^/@]*@")  # in the URL of a remote: no part of the repository's name


@dataclass(frozen=True)
class _Repository:
    name: str  # the URL of its remote, else its folder
    commit: str  # "" before the first commit
    tracked: frozenset[str]  # paths of the files in the commit, from the top
    changed: frozenset[str]  # those of them that differ from it


@dataclass
class Repositories:
    """What git says about files. Each repository is asked once, at the first of its files."""

    _tops: dict[Path, Path | None] = field(default_factory=dict)  # of folders; None: in no repository
    _found: dict[Path, _Repository] = field(default_factory=dict)  # by their tops

    def provenance(self, files: Sequence[Path]) -> dict[str, Scalar]:
        """Return ``repository``, ``commit`` and ``dirty`` of the first of ``files``, which may import the others.

        ``dirty`` says whether one of them that is in the same repository differs from the commit, or is not in it.
        Return {} if the first file is missing, in no repository, or ignored by it, or there is no git.
        """
        paths = [path.resolve() for path in files]  # git follows no link
        top = self._top(paths[0].parent) if paths[0].is_file() else None
        if top is None:
            return {}
        if top not in self._found:
            self._found[top] = _ask(top)
        repository = self._found[top]
        names = [path.relative_to(top).as_posix() for path in paths if path.is_relative_to(top)]
        untracked = [name for name in names if name not in repository.tracked]
        if names[0] in untracked and _git(top, "check-ignore", names[0]) is not None:
            return {}  # an installed package in a repository's own environment
        dirty = bool(untracked) or not repository.changed.isdisjoint(names)
        return {"repository": repository.name, "commit": repository.commit, "dirty": dirty}

    def of_revision(self, place: Path, commit: str) -> dict[str, Scalar]:
        """Return the same for a file of ``commit``, a git revision, in the repository of ``place``."""
        top = self._top(next(folder for folder in place.resolve().parents if folder.is_dir()))
        if top is None:
            return {}
        if top not in self._found:
            self._found[top] = _ask(top)
        return {"repository": self._found[top].name, "commit": commit, "dirty": False}

    def _top(self, folder: Path) -> Path | None:
        if folder not in self._tops:
            found = _git(folder, "rev-parse", "--show-toplevel")
            self._tops[folder] = Path(found.rstrip("\n")) if found else None
        return self._tops[folder]


def _ask(top: Path) -> _Repository:
    """Ask git about the repository in ``top``."""
    commit = (_git(top, "rev-parse", "--verify", "HEAD") or "").strip()
    remotes = (_git(top, "config", "--get-regexp", r"^remote\..*\.url$") or "").splitlines()
    urls = {name: url for name, _, url in (line.partition(" ") for line in remotes)}
    url = urls.get("remote.origin.url") or next(iter(urls.values()), "")
    committed = _git(top, "ls-tree", "-r", "-z", "--name-only", "HEAD") if commit else ""
    changed = _git(top, "diff", "-z", "--name-only", "--no-renames", "HEAD") if commit else ""
    return _Repository(
        redact(USER.sub("", url)) or str(top),
        commit,
        frozenset((committed or "").split("\0")),
        frozenset((changed or "").split("\0")),
    )


def _git(folder: Path, *words: str) -> str | None:
    """Return what git prints; None if it fails, as without a repository."""
    return output(["git", "--no-optional-locks", "-C", str(folder), *words])


def commits(rows: Iterable[Mapping[str, object]]) -> str:
    """Return the commits in the metrics of ``rows`` for people: ``1a2b3c4d, 5e6f7a8b*``; "" if none is known.

    ``*`` marks one from which a row's files differed. Where there are several repositories, their names come first.
    """
    found: dict[tuple[str, str], bool] = {}
    for row in rows:
        if (commit := row.get("commit")) and isinstance(commit, str):
            key = str(row.get("repository") or ""), commit
            found[key] = found.get(key, False) or row.get("dirty") is True
    several = len({repository for repository, _ in found}) > 1
    names = {repository: f"{Path(repository).name.removesuffix('.git')} " for repository, _ in found if several}
    return ", ".join(
        f"{names.get(repository, '')}{commit[:SHORT]}{'*' * dirty}" for (repository, commit), dirty in found.items()
    )

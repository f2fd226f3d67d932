"""Fingerprints: digests of the sources, and versions of the packages, that a row is valid for.

A row of an earlier session counts while its case and its fingerprint are the same. Python sources are compared as
syntax trees, so comments, docstrings and layout do not count; native sources, and the code that measures, which takes
0.1 s to parse, are compared by their bytes. No source is imported. The worker adds the files that the case then uses.
"""

import ast
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .. import implementations, measure, timing
from ..device.identity import package_version
from ..device.import_path import NAMES
from ..device.processes import ROOT
from ..device.used_paths import ABSENT, ALL, FILES, MODULE, contents, repository, stamp
from ..implementations import loader
from ..records.case import CaseRecord, Choice
from ..records.grouping import reachable
from ..records.plain_text import printable
from ..records.row import Row
from ..tasks import formats, own_file

PACKAGES = ("torch", "triton")
MEASURE = "runner/measure"
PACKAGE = ROOT / "runner"
LIFTED = ("kernels", "models")  # rooms that stand beside runner/ in a checkout
INSTALLED = re.compile(r"/(?:site|dist)-packages/(\w+)")  # and the package of a file there
EDITED = " and edited while it ran"  # ends a digest: the row was made by neither the old nor the new file
NOT_WATCHED = "it did not run to its end"  # why a row has no list of files

Entries = tuple[str, ...]  # functions of a file that a case uses; others in it do not count


@dataclass(frozen=True)
class _Source:
    digest: str
    imports: frozenset[tuple[int, str]] = frozenset()  # level and dotted name, as in an import statement
    packages: frozenset[str] = frozenset()  # that calls of ``runner.kernels.unsupported.needs`` name


@dataclass(frozen=True)
class _First:
    """The fingerprint of some cases at the first request, and the files behind it."""

    own: Path  # the implementation's own file; the workload's if that is of a git revision
    paths: Sequence[Path]  # without the code of the measurements
    stamps: Mapping[str, str]  # path of these files and of the measurements → stamp
    fingerprint: dict[str, str]
    entries: Mapping[Path, Entries]


class Fingerprints:
    """Compute fingerprints of cases. A file is read at the first request, and again after it has changed."""

    def __init__(self) -> None:
        self._first: dict[str, _First] = {}
        python = ".".join(platform.python_version_tuple()[:2])
        self._versions = {"python": python, **{name: package_version(name) for name in PACKAGES}}
        python_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        folders = [Path.cwd(), repository(os.getcwd()), *(Path(folder).absolute() for folder in python_path)]
        self._roots = [ROOT, *folders]  # as a worker has them

    def of(self, case: CaseRecord) -> dict[str, str]:
        """Return the fingerprint of ``case`` at the first request: digests of files by path, and versions.

        Files that are known only once the case has run are missing. Raises BadInput if the implementation cannot be
        built, as when a user's file is missing.
        """
        return {**self._first_of(case).fingerprint, FILES: ALL}

    def now(self, row: Row) -> dict[str, str]:
        """Return the fingerprint that ``row`` would have now, if its case used the same files. Raises BadInput."""
        known = self.of(row.case)
        used = {name: self._content(path_of(name)) for name in row.fingerprint if _is_path(name) and name not in known}
        if row.status not in ("ok", "wrong"):  # there is no time that could be out of date
            known[FILES] = row.fingerprint.get(FILES, ALL)
        return {**known, **used}

    def of_row(self, row: Row) -> dict[str, str]:
        """Return the fingerprint of a new row, whose own one is what a worker or another machine has recorded.

        Files that changed since the first request, or since the case used them, are marked.
        """
        first = self._first_of(row.case)
        known = first.fingerprint
        if any(stamp(path) != recorded for path, recorded in first.stamps.items()):
            now = self._compute(_measures(row.case), self._closure(first.paths, first.entries), first.entries)
            known = {name: text if known.get(name) == text else text + EDITED for name, text in now.items()}
        record, finished = row.fingerprint, "python" in row.fingerprint
        used = {}
        for path, text in record.items():
            name = path if finished or not _is_path(path) else _name_of_used(path)
            if _is_path(name) and name not in known:
                used[name] = text if finished else self._digest_of(path, text)
        return {**known, **used, FILES: record.get(FILES, NOT_WATCHED)}

    def of_program(self, row: Row) -> dict[str, str]:
        """Return the fingerprint of a row of ``runner.bench``, whose own one has the stamp of the function's file.

        The file is marked if it has changed since the function was timed.
        """
        known = self._compute((), self._closure(map(Path, row.fingerprint), {}), {})
        edited = {_name(Path(path)) for path, recorded in row.fingerprint.items() if stamp(path) != recorded}
        return {name: text + EDITED * (name in edited) for name, text in known.items()}

    def _digest_of(self, path: str, recorded: str) -> str:
        """Return the digest of a file that a worker has seen with the stamp ``recorded``."""
        if path.endswith(("/", MODULE)) or recorded == ABSENT:
            return recorded
        return self._content(path) + EDITED * (stamp(path) != recorded)

    def _content(self, path: str) -> str:
        return contents(path) if path.endswith(("/", MODULE)) else self._source(Path(path)).digest

    def files(self, case: CaseRecord) -> list[Path]:
        """Return the files that ``case`` is known to run, the implementation's own first. Raises BadInput as ``of``."""
        first = self._first_of(case)
        return [first.own, *first.paths]

    def _first_of(self, case: CaseRecord) -> _First:
        measures = _measures(case)
        file = case.workload.fields.get("path")
        kind = f"{file or case.workload.name} {case.impl.text} {measures}"
        if kind not in self._first:
            op = case.workload.name
            model = Path(os.path.abspath(str(file))) if file else PACKAGE / "models" / f"{op}.py"
            sources = implementations.build(case.impl).sources(op)  # a wrapper's own file comes first
            functions = [] if case.impl.revision else functions_of(case.impl, model)
            entries = {model: (*own_file.PARTS, *functions)} if file else {}
            paths = self._closure([*sources, model], entries)
            stamps = {str(path): stamp(str(path)) for path in (*paths, *_measure_files(measures))}
            fingerprint = self._compute(measures, paths, entries)
            self._first[kind] = _First([model, *sources][-1], paths, stamps, fingerprint, entries)
        return self._first[kind]

    def _compute(
        self, measures: tuple[str, ...], paths: Iterable[Path], entries: Mapping[Path, Entries]
    ) -> dict[str, str]:
        paths = [*paths]
        measuring = b"".join(path.read_bytes() for path in _measure_files(measures) if path.is_file())
        sources = {path: self._source(path, entries.get(path, ())) for path in paths}
        files = {_name(path): source.digest for path, source in sources.items()}
        needed = sorted({package for source in sources.values() for package in source.packages} | _installed(paths))
        packages = {package: package_version(package) for package in needed}
        return {**files, MEASURE: _digest(measuring), **self._versions, **packages}

    def _closure(self, starts: Iterable[Path], entries: Mapping[Path, Entries]) -> list[Path]:
        """Return ``starts`` and all files that they import, but for installed packages and Python's own."""
        waiting = [Path(os.path.abspath(path)) for path in starts]
        packages = [folder / "__init__.py" for path in waiting for folder in path.parents if _is_lifted(folder)]
        waiting += [path for path in packages if path.is_file()]

        def imported(path: Path) -> Iterator[Path]:
            for level, name in sorted(self._source(path, entries.get(path, ())).imports):
                roots = self._roots_of(path, level, name)
                files = _imported(name.removeprefix("kernel_") if roots == [ROOT] else name, roots)
                yield from (file for file in files if file.parent != PACKAGE)  # the runner's version says nothing

        return list(reachable(waiting, imported))

    def _roots_of(self, path: Path, level: int, name: str) -> Sequence[Path]:
        """Return the folders in which an import of ``name`` in ``path`` is looked for; ``level`` counts leading dots.

        A user's file finds modules beside it before those on Python's path. The rest of the runner does not count.
        """
        top, _, rest = name.partition(".")
        if level:
            folder = path.parents[level - 1]
            counts = top in LIFTED if folder == PACKAGE else not folder.is_relative_to(PACKAGE) or _is_lifted(folder)
            return [folder] if counts else []
        if top in NAMES:
            if top == "runner" and (users := loader.folders_with_runner([path.parent, Path.cwd()])):
                return [Path(folder) for folder in users]
            return [ROOT] if rest.partition(".")[0] in LIFTED else []
        if top in sys.stdlib_module_names or top in PACKAGES or path.is_relative_to(PACKAGE):
            return []
        return [path.parent, *self._roots]

    def _source(self, path: Path, entries: Entries = ()) -> _Source:
        try:
            return _read(path, entries, stamp(str(path)))
        except OSError:
            return _Source(ABSENT)


def is_version(name: str) -> bool:
    """Return whether an entry of a fingerprint is a version, of a package or of Python, not a digest."""
    return "." not in name and "/" not in name


def differences(now: Mapping[str, str], was: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why a row with the fingerprint ``was`` is out of date, by versions, measure and sources."""
    changed: dict[str, list[str]] = {"versions": [], "measure": [], "sources": []}
    for name in () if now == was else {**now, **was}:
        if now.get(name) != was.get(name) and name != FILES:
            changed["versions" if is_version(name) else "measure" if name == MEASURE else "sources"].append(name)
    if now.get(FILES) != was.get(FILES):
        changed["sources"].append(FILES)  # last: a file that has changed says more
    return {part: printable(_change(names, now, was)) for part, names in changed.items() if names}


def difference(now: Mapping[str, str], was: Mapping[str, str]) -> str:
    """Return the first of ``differences``; "" if there is none."""
    return next(iter(differences(now, was).values()), "")


def _change(names: Sequence[str], now: Mapping[str, str], was: Mapping[str, str]) -> str:
    """Describe the change of the entries ``names`` of a fingerprint, in a sentence about the first."""
    first, more = names[0], f" and {len(names) - 1} more" if names[1:] else ""
    if first == FILES:
        return f"which files it uses is not known: {was.get(FILES, NOT_WATCHED)}"
    if is_version(first):
        return f"{first} {was.get(first) or 'none'} is now {now.get(first) or 'none'}{more}"
    if first not in was or (was[first] == ABSENT and now.get(first) != ABSENT):
        return f"{first}{more} has been added"
    if first not in now:
        return f"{first}{more} is not used any more"
    if now[first] == ABSENT:
        return f"{first}{more} has been removed"
    if was[first].endswith(EDITED):
        return f"{first}{more} was edited while it ran"
    return f"{first}{more} {'have' if more else 'has'} changed"


def paths(fingerprint: Mapping[str, str]) -> list[str]:
    """Return the paths of the files in a fingerprint. A folder that was listed has ``/`` at its end."""
    return [path_of(name) for name in fingerprint if _is_path(name)]


def path_of(name: str) -> str:
    """Return the path that an entry of a fingerprint names."""
    if name.partition("/")[0] in LIFTED:
        return f"{PACKAGE}/{name}"
    return os.path.join(ROOT if name.startswith("runner/") else repository(os.getcwd()), name.removeprefix("./"))


def _is_path(name: str) -> bool:
    return not is_version(name) and name not in (FILES, MEASURE)


def _name_of_used(path: str) -> str:
    """Return the name of a path that a case has used, from which ``path_of`` finds it again."""
    name = _name(Path(path)) + "/" * path.endswith("/")
    name = f"./{name}" if is_version(name) else name
    return name if path_of(name) == path or _is_lifted(Path(path)) else path


def _measures(case: CaseRecord) -> tuple[str, ...]:
    return tuple(choice.name for choice in case.measures)


@cache
def _measure_files(measures: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files that ``measures`` consist of: those that all share, and the folder of each that has one."""
    room, shared = Path(measure.__path__[0]), Path(timing.__path__[0])
    own = [file for name in measures for file in (room / name).rglob("*.py")]
    return tuple(sorted([*room.glob("*.py"), *shared.glob("*.py"), *own]))


def functions_of(impl: Choice, file: Path) -> list[str]:
    """Return the functions of ``file`` that an implementation runs or wraps, in whatever revision."""
    named = (str(impl.fields.get(name) or "").rpartition(":") for name in ("path", "of"))
    return [function for path, _, function in named if path and os.path.abspath(path) == str(file)]


@cache
def _read(path: Path, entries: Entries, _stamp: str) -> _Source:
    """Raises OSError. ``_stamp``: that of the file, which is read again when it has changed."""
    content = path.read_bytes()
    if path.suffix != ".py" and not entries:
        return _Source(_digest(content))
    try:
        tree = formats.parse(path).tree if entries else ast.parse(content)
    except (SyntaxError, ValueError):
        return _Source(_digest(content))
    tree = own_file.used_code(tree, entries) if entries else tree
    nodes = list(ast.walk(tree))
    for node in nodes:
        if (
            isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            del node.body[0]
    return _Source(_digest(ast.unparse(tree).encode()), frozenset(_imports(nodes)), frozenset(_needed(nodes)))


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


def _installed(paths: Iterable[Path]) -> set[str]:
    """Return the installed packages that ``paths`` are in, but for this project's: not all of a package is read."""
    found = (INSTALLED.search(str(path)) for path in paths if not path.is_relative_to(PACKAGE))
    return {match[1] for match in found if match}


def _imported(name: str, roots: Iterable[Path]) -> list[Path]:
    """Return the files that an import of ``name`` runs, its packages first, from the first of ``roots`` that has it."""
    for root in roots:
        places = [root.joinpath(*name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
        files = (next(filter(Path.is_file, (each / "__init__.py", each.with_suffix(".py"))), None) for each in places)
        if found := [*filter(None, files)]:
            return found
    return []


def _is_lifted(path: Path) -> bool:
    return any(path.is_relative_to(PACKAGE / name) for name in LIFTED)


def _name(path: Path) -> str:
    """Return ``path`` as seen from the project, else from the repository around the current folder, else in full."""
    for root in [PACKAGE] if _is_lifted(path) else [ROOT, repository(os.getcwd())]:
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]

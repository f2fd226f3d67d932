"""Files of the user's repositories that a case uses: files that are opened, and missing files that are looked for.

inotify reports the files that are opened, also by a compiler or by a library in C. ``lookups`` notes missing files,
which nothing opens. A module that an earlier case has imported opens no file again, so an import of it counts as a use
of all files that were used while it was loaded.
"""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Container, Iterable, Set
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import takewhile
from pathlib import Path

from ..device import processes
from ..device.cache import cache_folder
from ..device.file_events import CREATED, MODIFIED, MOVED_HERE, OPENED, READ, FileEvents
from ..device.used_paths import ALL, FILES, THERE, WRITTEN, repository, stamp
from ..records.case import CaseRecord
from ..records.row import Phase
from .lookups import Lookups

PACKAGE = Path(__file__).resolve().parents[1]
# Folders of this package whose files count, and the folders that they link to in a checkout
LINKED = {f"{PACKAGE}/{name}/": f"{(PACKAGE / name).resolve()}/" for name in ("kernels", "models")}
RUNNER = tuple(f"{folder}/" for folder in (PACKAGE, PACKAGE.with_name("kernel_runner"), PACKAGE.with_name("conf")))
PLACES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
INSTALLED = tuple({f"{place}/" for folder in PLACES for place in (folder, os.path.realpath(folder))})
OTHERS = (*RUNNER, *INSTALLED)  # folders whose files do not count, but for LINKED
NINJA = "build.ninja"  # in the folder of an extension that torch.utils.cpp_extension builds
NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".c", ".hpp", ".h")
FOREIGN = ("site-packages", "dist-packages")  # names of folders with installed packages


class UsedFiles:
    """Watches the cases of this process. Calls come in this order for each: ``start``, ``enter`` often, ``finish``."""

    def __init__(self) -> None:
        self._events = FileEvents()
        self._roots: tuple[str, ...] = ()
        self._unknown = ""  # why lists of this process may lack files
        self._stamps: dict[str, str] = {}  # stamps of files, from when they were last opened
        self._loaded_with: dict[str, set[str]] = {}  # what was used while a module was loaded, by its file
        self._modules: dict[str, str] = {}  # files of modules in the folders, by their names
        self._last: tuple[int, str] | None = None  # number of loaded modules and the newest, at the last look at them
        self._specs: dict[str, ModuleSpec] = {}  # specs of those modules, as they were last loaded
        self._parts: dict[str, set[str]] = {}  # what a workload or an implementation has used
        self._kept: dict[str, set[str]] = {}  # what a function of a workload's file has read, for later ones too
        self._part: set[str] = set()
        self._case: tuple[set[str], ...] = ()
        self._workload = ""  # the file of the workload, else its name
        self._lookups = Lookups()
        finders = [sys.modules.get(getattr(finder, "__module__", "")) for finder in sys.meta_path]  # also of setuptools
        editable = [os.path.dirname(place) for finder in finders for place in getattr(finder, "MAPPING", {}).values()]
        folders = [os.getcwd(), *filter(_is_of_user, [*sys.path, *editable])]
        self._watch([*LINKED, *(str(repository(folder)) for folder in folders)])
        self._look_at_modules()
        self._loaded_since(set(self._modules.values()))
        for file in self._modules.values():
            self._note_early(file)

    # --- a case ---

    def start(self, case: CaseRecord) -> None:
        """Prepare for ``case``. It uses nothing before its first phase."""
        self._workload = case.own_file or case.workload.name
        names = self._workload, f"{self._workload} {case.impl.text}"
        if names[1] not in self._parts:
            files = map(os.path.abspath, case.user_files)
            self._watch([str(repository(os.path.dirname(file))) for file in files if os.path.isfile(file)])
            if case.impl.commit:  # opening a watched file takes 2 us longer, which would make the working tree slower
                self._events.watch(str(cache_folder("revisions") / case.impl.commit), report=False)
            is_own = str(case.impl.fields.get("path")).startswith(f"{case.workload.fields.get('path')}:")
            kept = self._kept.get(self._workload, ()) if is_own and not case.impl.commit else ()
            self._parts[names[1]] = {*kept}
        for _ in self._events.read():  # drop events since the last case
            pass
        self._case = tuple(self._parts.setdefault(name, set()) for name in names)
        self._part = self._case[0]

    def enter(self, phase: Phase) -> None:
        """Note that a phase of the case begins."""
        if phase not in ("reference", "check"):
            self._collect()
        if phase in ("inputs", "build"):  # of a workload, and of an implementation
            self._part = self._case[phase == "build"]
            self._lookups.watch(self._modules)

    def implementation(self) -> set[str]:
        """Return the paths that the implementation of the case has used so far."""
        return self._case[1]

    def finish(self) -> dict[str, str]:
        """Return the paths that the case has used, with stamps of ``runner.device.used_paths``, and FILES."""
        self._collect()
        record = {path: self._stamps[path] for path in sorted(set().union(*self._case))}
        return {**record, FILES: self._unknown or self._events.lost or ALL}

    # --- what is used ---

    def _collect(self) -> None:
        """Add what has been used since the last call to the present part."""
        self._lookups.stop()
        used, written = self._opened()
        paths, imported = ({*noted} for noted in (self._lookups.paths, self._lookups.imported))
        self._lookups.paths.clear()
        self._lookups.imported.clear()
        builds = [os.path.dirname(path) for path in paths if path.endswith(f"/{NINJA}")]
        for path in {*map(_plain, paths), *(path for folder in builds for path in _of_ninja(folder))} - written:
            if self._counts(path) and (path.endswith("/") or not os.path.isdir(path)) and (now := stamp(path)) != THERE:
                used[path] = now
        if not used.keys() <= self._stamps.keys() or self._last != _newest():  # a look takes 0.3 ms
            # Modules below a link or in a hidden folder are not watched.
            used |= {file: stamp(file) for file in self._look_at_modules() - used.keys()}
        for file in used.keys() & self._loaded_with.keys():
            if used[file] != self._stamps[file]:  # perhaps the process still has the module as it was
                used[file] = WRITTEN
        self._stamps |= used
        brought = self._brought_by(imported, used)
        in_order, loaded = [*used], self._loaded_since(used)
        for place, file in enumerate(in_order):
            if file in loaded:  # what was opened before it was not used by it
                self._loaded_with.setdefault(file, set()).update(brought, paths & used.keys(), in_order[place:])
        self._part |= brought | used.keys()

    def _loaded_since(self, used: Container[str]) -> set[str]:
        """Return the modules of ``used`` loaded since the last call. Another process may open the other files too."""
        loaded = set()
        for name in [name for name, file in self._modules.items() if file in used]:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is not None and spec is not self._specs.get(name):
                self._specs[name] = spec
                loaded.add(self._modules[name])
        return loaded

    def _brought_by(self, imported: Set[str], used: Iterable[str]) -> set[str]:
        """Return the files of loaded modules that were ``imported`` again, and what was used while they were loaded."""
        brought = set()
        data = [path for path in used if not path.endswith(".py")]  # a module may keep what a call of it has read
        for name, file in self._modules.items():
            if file == self._workload and self._part is not self._case[0]:  # building only looks up names in it
                if name in imported:  # the call may have read for other functions; a compiler reads for this one
                    self._kept.setdefault(file, set()).update(path for path in data if not path.endswith(NATIVE))
                continue
            if name in imported or (name.rpartition(".")[0] in imported and not _is_kernel(file)):
                brought |= self._loaded_with.get(file, set()) | {file}
                self._loaded_with.setdefault(file, set()).update(data)
                self._stamps.setdefault(file, stamp(file))
        return brought

    def _opened(self) -> tuple[dict[str, str], set[str]]:
        """Return the files that were opened, and the files that were written, by the case or another process."""
        seen: dict[str, int] = {}
        for path, events in self._events.read():
            seen[path] = seen.get(path, 0) | events
        used = {}
        written = {path for path, events in seen.items() if events & (MODIFIED | CREATED | MOVED_HERE)}
        for path, events in seen.items():
            made = events & (CREATED | MOVED_HERE) or (events & MODIFIED and not events & READ)
            if events & OPENED and not made and self._counts(source := _source(path)):
                used[source] = WRITTEN if events & MODIFIED else stamp(source)
        return used, written

    def _counts(self, path: str) -> bool:
        """Return whether ``path`` may be one of the user's: in a folder, and not of an installation or of git."""
        if path.startswith((*LINKED,)):
            return not path.endswith("/")  # the runner itself lists them
        if not path.startswith(self._roots) or path.startswith(OTHERS):
            return False
        if path != (shown := path.encode(errors="backslashreplace").decode()):  # a row cannot name it
            self._unknown = self._unknown or f"the name of {shown} is not UTF-8; rename it"
            return False
        return not any(part in f"{path}/" for part in ("/.git/", "/__pycache__/", "/__editable__"))

    def _look_at_modules(self) -> set[str]:
        """Find the modules that are loaded from the folders. Return the files of those that were not known."""
        self._last = _newest()
        (newest, others), found = modules_at_start(), set()
        for name in [*others, *takewhile(lambda name: name != newest, reversed(sys.modules))]:
            origin = _plain(_origin(name))
            if not origin or origin.startswith(INSTALLED) or self._modules.get(name) == origin:
                continue
            if origin.startswith(RUNNER) and not origin.startswith((*LINKED,)):
                continue
            file = _file(origin)
            if _is_kernel(file) and file.endswith("__init__.py"):
                continue
            if self._counts(file):
                found |= {file} - {self._modules.get(name)}
                self._modules[name] = file
            else:
                self._note_early(file)
        return found

    def _note_early(self, file: str) -> None:
        """Note that the module of ``file`` was imported when its repository, if it has one, was not watched."""
        top = repository(os.path.dirname(file))
        is_kept = "/." in file.removeprefix(str(top))  # in a cache
        if file and not file.startswith((*LINKED,)) and (top / ".git").exists() and not is_kept:
            self._unknown = self._unknown or f"{file} was imported before {top} could be watched"

    # --- watching ---

    def _watch(self, folders: Iterable[str]) -> None:
        for top in dict.fromkeys(folders):
            if not f"{top}/".startswith(self._roots):
                self._roots += (top if top.endswith("/") else f"{top}/",)
                self._events.watch(top.rstrip("/"))


@cache
def modules_at_start() -> tuple[str, Set[str]]:
    """Return the newest module of an installation, and the modules of none, at the first call: that of the zygote.

    A worker that looked at the name of each of the thousands of an installation would copy the memory of all.
    """
    installed = [name for name in sys.modules if _origin(name).startswith(INSTALLED)]
    return installed[-1], sys.modules.keys() - installed


def _newest() -> tuple[int, str]:
    """Return the number of loaded modules, and the one that was loaded last."""
    return len(sys.modules), next(reversed(sys.modules))


def _origin(name: str) -> str:
    """Return the file of a loaded module, as its spec has it, or ""."""
    spec = getattr(sys.modules.get(name), "__dict__", {}).get("__spec__")
    return spec.origin or "" if isinstance(spec, ModuleSpec) and spec.has_location else ""


def _is_of_user(folder: str) -> bool:
    whole = os.path.realpath(folder)
    of_user = not f"{whole}/".startswith(OTHERS) and not whole.endswith(FOREIGN) and whole != str(PACKAGE.parent)
    return of_user and os.path.isdir(whole)


def _is_kernel(file: str) -> bool:
    """Return whether ``file`` is an implementation in this package: the runner itself imports the folders of them."""
    return f"{os.path.dirname(os.path.dirname(file))}/" in LINKED


def _source(path: str) -> str:
    """Return the source of a file of bytecode, else ``path``."""
    try:
        return importlib.util.source_from_cache(path) if path.endswith(".pyc") else path
    except ValueError:
        return path


def _plain(path: str) -> str:
    """Return ``path`` as this package names it, by its links."""
    return next((link + path.removeprefix(real) for link, real in LINKED.items() if path.startswith(real)), path)


def _file(origin: str) -> str:
    """Return the file of a module's origin, which may lie in an archive; "" if there is none."""
    path = Path(origin)
    return next((_plain(str(place)) for place in (path, *path.parents) if place.is_file()), "")


def _of_ninja(folder: str) -> list[str]:
    """Return the files that the builds of an extension depend on."""
    listed = processes.output(["ninja", "-C", folder, "-t", "deps"]) or ""
    lines = [line for line in listed.splitlines() if line.startswith(" ")]
    return [os.path.normpath(os.path.join(folder, line.strip())) for line in lines]

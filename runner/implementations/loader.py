"""Load a file as a module, once in a process, so that two folders may hold modules of the same name.

A file in a package is a module of that package, under its real name. Any other gets a private name: Python keeps one
module per name, but two versions of a kernel, each with its own ``helper.py``, are compared in one process. So each
folder gets a private package, and imports of the folder's modules are rewritten to imports from that package when a
file is compiled. The modules stay loaded under names that ``torch.compile``, Triton, ``inspect`` and ``pickle`` can
look up, and an import inside a function finds the same module as an import at the top.

A file may put folders on Python's path, such as its ``src/``. They are there while the file is loaded, and for its own
imports later: each name that is not in its folder is looked for when it is imported, through a package of the file.

If a folder holds a git revision, imports from anywhere in the working tree of its repository are rewritten to imports
from the revision.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from traceback import clear_frames
from types import CodeType, ModuleType, TracebackType
from typing import Any

from ..device import import_path
from ..kernels.unsupported import Unsupported
from ..records.replaced import replaced
from ..tasks import formats, popcorn
from . import scripts
from .arguments import undecorated
from .revisions import Snapshot, real_path
from .shared_classes import share_classes

PREFIX = "folder_"  # begins the name of a folder's package
IMPORTS = "imports_"  # begins the name of a file's package
SHARED = ("unsupported", "spans")  # modules that the kernels of a revision share with the runner
TRITON = re.compile(rb"^\s*(import|from) triton\b", re.MULTILINE)
OPERATOR = re.compile(r"\w+::\w+")  # the name of an operator of torch.library
PACKAGE = Path(__file__).resolve().parents[1]  # the folder of this package, which has two names
LONG_S = 1.0  # time of a file's own code, without its imports, that is worth a message
# Errors after which nothing else of the file counts, though its functions are defined.
LOST = re.compile(r"CUDA error|AcceleratorError|out of memory|can't allocate memory")
NO_DRIVER = "0 active drivers"  # begins what Triton says without a GPU
IMPORTERS = ("import_module", "__import__")  # functions that import a module by a computed name
REGISTERS = ("custom_op", "triton_op", "define")  # functions of torch.library that take the name of an operator

_folders: dict[str, tuple[str, Snapshot | None]] = {}  # folder and its git revision, by the name of the package
_importers: dict[str, tuple[_Rewrite, list[str]]] = {}  # with folders that their file adds to Python's path, by package
_added: list[str] | None = None  # folders that the file which is being loaded adds to Python's path
_usual: Sequence[str] = ()  # Python's path when the loading of the last file began
_operators: dict[str, str] = {}  # file that registers an operator, by the operator's name
_imported: dict[tuple[str, str], _Imported] = {}  # files that were loaded, by the module's name and ``apart``
_compiled: dict[str, bytes] = {}  # sources, by the module's name
_asked: dict[int, tuple[float, list[str]]] = {}  # seconds and notes of those since the last call of ``columns``
_functions: list[tuple[ModuleType, dict[str, object]]] = []  # functions of the modules that workloads have imported
_libraries: dict[str, list[Any]] = {}  # of torch.library that the last copy of a module has made, by its name
_scripts: set[str] = set()  # files in packages that cannot be imported, and that are loaded without them


@dataclass(frozen=True)
class _Imported:
    """Result of importing a file."""

    source: bytes
    seconds: float
    notes: list[str]  # what it did beside defining functions
    module: ModuleType | None
    error: BaseException | None  # that ended it
    traceback: TracebackType | None

    def why_not(self, file: Path, functions: Sequence[str]) -> BaseException | None:
        """Return the error that keeps ``functions`` from use; None if they were complete when it came."""
        if (error := self.error) is None:
            return None
        line = scripts.stopped_at(self.traceback, file)
        is_lost = isinstance(error, MemoryError) or LOST.search(f"{type(error).__name__}: {error}")
        if self.module and line and not is_lost and scripts.complete_before(line, ast.parse(self.source), functions):
            return None
        if isinstance(error, SystemExit):
            return ImportError(
                f"{file.name} ends its process in line {line} while it is imported, before {' and '.join(functions)} "
                f"is defined (sys.exit({error.code})); put that below {scripts.GUARD}"
            )
        if isinstance(error, FileNotFoundError) and (file.parent / str(error.filename)).exists():
            advice = f"one lies beside {file.name}: open it below Path(__file__).parent, or run the command there"
            return FileNotFoundError(error.errno, f"{error.strerror}; {advice}", error.filename)
        return error


def load_file(
    file: Path, snapshot: Snapshot | None = None, *, functions: Sequence[str] = (), apart: str = ""
) -> ModuleType:
    """Return the module of ``file``, which is run once in this process, and again once it has been edited.

    ``snapshot`` is the git revision of the file. ``apart`` names a copy of the module that other callers do not change;
    "" is the copy that they share. If importing the file fails after its ``functions`` were defined, as in a script
    that plots at its end, the module is returned; otherwise each call raises what the first one raised.

    Modules beside the file are loaded once. The name of a standard module, or of what the runner needs, always means
    that module, even if the folder has one of the same name.

    Raises Unsupported if the file registers an operator of torch.library that another file has registered, and
    ImportError if it ends the process.
    """
    if apart and import_path.is_installed(file):
        raise Unsupported(f"{file} is installed, and others use its kernels; copy it to choose among configurations")
    file = real_path(file)  # it may change the current folder
    source = file.read_bytes()
    name = module_name(file, snapshot)
    known = _imported.get((name, apart))
    if known is None or known.source != source:
        known = _import(file, snapshot, source, apart)
        name = module_name(file, snapshot)
        _imported[name, apart] = known
    notes = [*known.notes]
    _asked[id(known)] = known.seconds, notes
    if (error := known.why_not(file, functions)) or known.module is None:
        # Another time, there may be enough, or Triton only compiles and needs no driver.
        if isinstance(error, MemoryError) or LOST.search(str(error)) or NO_DRIVER in str(error):
            del _imported[name, apart]
        assert error is not None
        raise error.with_traceback(known.traceback)
    if known.error:
        what = ": ".join([type(known.error).__name__, *str(known.error).strip().splitlines()[:1]])
        line = scripts.stopped_at(known.traceback, file)
        notes.insert(0, f"importing {file.name} stopped in line {line}, after {functions[0]} was defined: {what}")
    sys.modules[name] = known.module
    importlib.import_module(name)  # so that Lookups notes the import
    return known.module


def columns() -> dict[str, float | str]:
    """Return the columns about importing the files that were asked for since the last call; {} without any."""
    files = [*_asked.values()]
    _asked.clear()
    notes = "; ".join(dict.fromkeys(note for _, notes in files for note in notes))
    took = {"import_s": sum(seconds for seconds, _ in files)} if files else {}
    return {**took, **({"import_note": notes} if notes else {})}


def forget_tuned() -> None:
    """Let autotuned kernels of the loaded files tune again, since a configuration may be of another size."""
    for module in loaded():
        for _, member in undecorated(module):
            if type(member).__name__ == "Autotuner" and isinstance(cache := getattr(member, "cache", None), dict):
                cache.clear()


def keep_functions(modules: Iterable[ModuleType]) -> None:
    """Remember the functions of ``modules``, which a workload has just imported, unless they are known already."""
    for module in {*modules}.difference(known for known, _ in _functions):
        _functions.append((module, {name: part for name, part in vars(module).items() if callable(part)}))


def restore_functions() -> None:
    """Undo replacements of the functions that workloads have imported, so that no implementation judges itself."""
    for module, functions in _functions:
        vars(module).update(functions)


def loaded() -> list[ModuleType]:
    """Return the imported modules that are files of users."""
    modules = [module for name in [*_compiled] if isinstance(module := sys.modules.get(name), ModuleType)]
    return [each for each in modules if isinstance(getattr(vars(each).get("__spec__"), "loader", None), _Loader)]


def _import(file: Path, snapshot: Snapshot | None, source: bytes, apart: str) -> _Imported:
    """Run ``file`` and return what came of it. What it changes in this process is undone."""
    global _usual
    _usual = [*sys.path] if _added is None else _usual
    module, error, notes = None, None, list[str]()
    with scripts.undone(file) as changed, scripts.own_time() as spent, _own_path([]):
        try:
            name = _enter_package(file, snapshot, source)
            module = sys.modules.get(name)
            if module is None or not _is_current(module, file, source, apart):
                module = sys.modules[name] = _new_module(name, file)
                with _defining_operators(name):
                    module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]  # both are there
        except (Exception, SystemExit) as raised:
            error = raised
            clear_frames(error.__traceback__)  # of tensors
            sys.modules.pop(module_name(file, snapshot), None)
    seconds, own = spent
    if changed:
        notes.append(f"importing {file.name} changed {', '.join(changed)}, which was undone")
    if own > LONG_S:
        advice = f"what it runs as a script belongs below {scripts.GUARD}"
        notes.append(f"{file.name} ran for {own:.1f} s when it was imported, once in each worker; {advice}")
    forget_tuned()
    return _Imported(source, seconds, notes, module, error, error.__traceback__ if error else None)


@contextmanager
def _defining_operators(name: str) -> Iterator[None]:
    """Let a copy of the module ``name`` define the operators of torch.library that an earlier one has defined."""
    from torch import library

    made, usual = _libraries.setdefault(name, []), library.Library.__init__
    while made:
        made.pop()._destroy()

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__") in (library.__name__, "functools"):  # library.define
            frame = frame.f_back
        if frame.f_globals.get("__name__") == name:
            made.append(self)

    with replaced(library.Library, "__init__", noted):
        yield


@contextmanager
def _own_path(added: list[str]) -> Iterator[None]:
    """Put the folders ``added`` by a file on Python's path while it imports, and append those that it adds now."""
    global _added
    if _added is not None:  # a file that is being loaded imports this one
        yield
        return
    _added, before = added, [*sys.path]
    sys.path[:0] = [folder for folder in added if folder not in sys.path]
    try:
        yield
    finally:
        added += [folder for folder in sys.path if folder not in (*before, *added)]
        sys.path[:], _added = before, None


def _is_current(module: ModuleType, file: Path, source: bytes, apart: str) -> bool:
    """Return whether ``module``, which its package or another file has imported, is that of the file as it is now."""
    if import_path.is_installed(file):
        return True
    is_own = any(one.module is module for one in _imported.values())  # of an earlier call, which is not asked for
    return not (apart or is_own) and _compiled.get(module.__name__, source) == source


def _enter_package(file: Path, snapshot: Snapshot | None, source: bytes) -> str:
    """Import the packages that ``file`` is in, and return its name."""
    name, (top, _) = module_name(file, snapshot), _place(file)
    if name.startswith(PREFIX):
        _register(top, snapshot)
    elif import_path.is_installed(file):
        importlib.import_module(name)
    else:
        _add_finder()
        _folders[name.partition(".")[0]] = (str(top), None)
    try:
        importlib.import_module(name.rpartition(".")[0] or name)
    except Exception:
        if _level(source) or str(real_path(file)) in _scripts:
            raise
        _scripts.add(str(real_path(file)))  # it may need nothing of its package, which cannot be imported
        return _enter_package(file, snapshot, source)
    return name


def _new_module(name: str, file: Path) -> ModuleType:
    folders = [str(file.parent)] if file.stem == "__init__" else None
    loader = _Loader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def revision_package(root: Path) -> str:
    """Return the package of ``root``, the folder ``kernels/`` of a git revision. Its modules can be imported."""
    name = _register(root, None)
    for module in SHARED:
        sys.modules.setdefault(f"{name}.{module}", importlib.import_module(f"..kernels.{module}", __package__))
    return name


def importing(function: Any, package: str, path: str) -> Any:
    """Return ``import_module`` or ``__import__`` for the names that the file at ``path``, in ``package``, computes.

    Such a name means what it means in an import statement there. Any other ``function`` is returned as it is.
    """

    def private(name: str) -> str:
        return "" if name.startswith(".") else _Rewrite(package, path).private(name)

    def import_module(name: str, package: str | None = None) -> ModuleType:
        return importlib.import_module(private(name) or name, package)

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> ModuleType:
        found = "" if level else private(name)
        module = __import__(found or name, globals, locals, fromlist, level)
        # Without fromlist, ``__import__`` returns the first package of a dotted name.
        return sys.modules[found.removesuffix(name) + name.partition(".")[0]] if found and not fromlist else module

    return import_module if function is importlib.import_module else import_ if function is __import__ else function


def folders() -> list[str]:
    """Return the folders from which files have been loaded."""
    return [root for root, _ in _folders.values()]


def module_name(file: Path, snapshot: Snapshot | None = None) -> str:
    """Return the name under which ``file`` is loaded: its real one in a package, unless that stands for another."""
    top, parts = _place(file)
    if import_path.is_installed(file):
        return ".".join(parts)
    packages = len(parts) - (file.stem != "__init__")
    is_real = snapshot is None and packages >= max(1, _level(file.read_bytes())) and _is_free(parts[0], top)
    return ".".join(parts if is_real else [_package(top), *parts])


def _place(file: Path) -> tuple[Path, list[str]]:
    """Return the folder around the packages of ``file``, and the parts of its name from there."""
    path = real_path(file)
    folder, parts = path.parent, [(path.stem if path.suffix == ".py" else path.name).replace(".", "_")]
    level = _level(path.read_bytes()) if path.is_file() else 0
    while str(path) not in _scripts and folder.name.isidentifier():
        if not (folder / "__init__.py").is_file() and len(parts) >= level:
            break
        folder, parts = folder.parent, [folder.name, *parts]
    return folder, parts[:-1] if parts[1:] and path.stem == "__init__" else parts


@lru_cache
def _level(source: bytes) -> int:
    """Return the most dots of a relative import, 2 for ``from ..util import f``. Its folders need no __init__.py."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return 0
    return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)


def _is_free(package: str, top: Path) -> bool:
    """Return whether the name ``package`` stands for the package in ``top``, or for nothing yet."""
    if package in _folders:
        return _folders[package] == (str(top), None)
    if package in sys.modules:
        return str(top / package) in map(os.path.realpath, getattr(sys.modules[package], "__path__", ()))
    return not import_path.is_reserved(package)


def _package(root: Path, prefix: str = PREFIX) -> str:
    return prefix + hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]


def _register(root: Path, snapshot: Snapshot | None) -> str:
    """Make the package of ``root``, once, and return its name."""
    _add_finder()
    name = _package(root)
    if name not in sys.modules:
        folder = ModuleSpec(name, None, is_package=True)
        folder.submodule_search_locations = [str(root.resolve())]
        sys.modules[name] = importlib.util.module_from_spec(folder)
    _folders.setdefault(name, (str(root.resolve()), snapshot))
    return name


def _add_finder() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Find the modules of the folders' packages, and load their sources by ``_Loader``."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Find ``name`` in ``path`` if it belongs to a folder's package; otherwise leave it to Python."""
        if (package := name.partition(".")[0]) in _importers:
            return ModuleSpec(name, _Import())
        if package not in _folders:
            return None
        spec = PathFinder.find_spec(name, [_folders[package][0]] if path is None else path)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Import(Loader):
    """Import for a file what is not in its folder: ``imports_1a2b.name`` becomes what ``name`` means there."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that is meant in the place of ``module``."""
        parent, _, last = module.__name__.rpartition(".")
        rewrite, added = _importers[module.__name__.partition(".")[0]]
        with _own_path(added):
            name = rewrite.meant(last) if parent in _importers else f"{sys.modules[parent].__name__}.{last}"
            sys.modules[module.__name__] = importlib.import_module(name)


class _Loader(SourceFileLoader):
    """Rewrite the imports of a file. Bytecode is ignored, since it misses an edit of the same second and length."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).setdefault("get_ipython", scripts.Notebook)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file as it is now. Raises Unsupported if another file has registered one of its operators."""
        path = str(real_path(Path(self.get_filename(fullname))))
        _compiled[fullname] = self.get_data(path)
        if TRITON.search(_compiled[fullname]):
            scripts.skip_benchmarks()
        task = formats.parse(path)
        tree, name = task.tree, task.filename
        if task.source:  # inspect and Triton look it up
            linecache.cache[name] = len(task.source), None, task.source.splitlines(keepends=True), name
        for operator in _registered(tree):
            if (owner := _operators.setdefault(operator, path)) != path:
                raise Unsupported(
                    f"{path} and {owner} both register the operator {operator}, and a process can have only one; "
                    "give it another name in one of them, or run them separately"
                )
        package = fullname if Path(path).stem == "__init__" else fullname.rpartition(".")[0]
        rewrite = _Rewrite(package, path)
        _enter_imports(rewrite)
        rewritten = rewrite.visit(tree)
        share_classes(rewritten, Path(path).stem, package)
        return compile(ast.fix_missing_locations(rewritten), name, "exec", dont_inherit=True)


def _enter_imports(rewrite: _Rewrite) -> None:
    """Make the package through which a file imports, without what the file imported before an edit."""
    if rewrite.imports in _importers:
        for name in [name for name in sys.modules if name.startswith(f"{rewrite.imports}.")]:
            del sys.modules[name]
    sys.modules[rewrite.imports] = importlib.util.module_from_spec(ModuleSpec(rewrite.imports, None, is_package=True))
    _importers[rewrite.imports] = rewrite, [] if _added is None else _added


def _registered(tree: ast.Module) -> Iterator[str]:
    """Return the names of the operators that a file registers with torch.library."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    words = (call.args[0] for call in calls if ast.unparse(call.func).rpartition(".")[2] in REGISTERS)
    return filter(OPERATOR.fullmatch, (str(word.value) for word in words if isinstance(word, ast.Constant)))


class _Rewrite(ast.NodeTransformer):
    """Turn imports of the folder's modules in the file at ``path`` into imports from its ``package``."""

    def __init__(self, package: str, path: str) -> None:
        self._package, self._path = package, path
        self._top = package.partition(".")[0]
        self._root, self._snapshot = _folders[self._top]
        self.imports = _package(Path(path), IMPORTS)  # the package of the file
        self._importers = {*IMPORTERS}  # names in the file

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """``from a.b import c`` → ``from package.a.b import c``."""
        self._importers |= {alias.asname for alias in node.names if alias.asname and alias.name in IMPORTERS}
        if node.module and not node.level and (private := self.private(node.module)):
            node.module = private
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        """``import a.b`` → ``import package.a.b, package.a as a``; ``import a as b`` → ``import package.a as b``."""
        names = []
        for alias in node.names:
            private = self.private(alias.name)
            top, _, rest = alias.name.partition(".")
            if not private:
                names.append(alias)
            elif alias.asname or not rest:
                names.append(ast.alias(private, alias.asname or top))
            else:
                names += [ast.alias(private), ast.alias(private.removesuffix(f".{rest}"), top)]
        return [ast.copy_location(ast.Import(names), node)]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """``import_module`` → ``importing(import_module, package, path)``, and so does ``__import__``."""
        return self._importing(node) if node.id in self._importers and isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """``importlib.import_module`` → ``importing(importlib.import_module, package, path)``."""
        self.generic_visit(node)
        return self._importing(node) if node.attr in IMPORTERS and isinstance(node.ctx, ast.Load) else node

    def _importing(self, function: ast.expr) -> ast.Call:
        this = f"__import__({__name__!r}, fromlist=['{importing.__name__}']).{importing.__name__}"
        call = ast.parse(f"{this}(0, {self._package!r}, {self._path!r})", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args[0] = function
        for part in ast.walk(call):
            ast.copy_location(part, function)
        return call

    def private(self, name: str) -> str:
        """Return the private name of the module that ``name`` means here; "" if it always means the same."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in import_path.NEEDED:
            return ""
        return self._in_folder(name) or ("" if top in import_path.NAMES else f"{self.imports}.{name}")

    def meant(self, name: str) -> str:
        """Return the name by which the top-level module ``name``, which is not in the folder, can be imported now."""
        if self._snapshot and (private := self._of_snapshot(name, self._snapshot)):
            return private
        spec, added = PathFinder.find_spec(name), [folder for folder in sys.path if folder not in _usual]
        folder = _holding(spec) if spec else ""
        if folder not in map(os.path.realpath, added) or not os.path.isdir(folder):  # but an archive, for example
            return name
        for place in added:  # so that Lookups notes them: folders that come first, and links
            os.path.exists(f"{place}/{name}.py"), os.path.exists(f"{place}/{name}")
        is_shared = import_path.is_reserved(name) or import_path.is_installed(f"{folder}/{name}")
        return name if is_shared else f"{_register(Path(folder), self._snapshot)}.{name}"

    def _in_folder(self, name: str) -> str:
        """Return the private name of ``name``; "" if it is not in a folder's package."""
        if self._snapshot:
            return self._of_snapshot(name, self._snapshot)
        if name.partition(".")[0] == "runner":
            users = folders_with_runner([self._root, os.curdir])
            return f"{_register(Path(users[0]), None)}.{name}" if users else ""
        if self._is_beside(name, os.path.dirname(self._path)):
            return f"{self._package}.{name}"
        tasks = (folder for root in (self._root, *reversed(folders())) for folder in popcorn.folders_of(Path(root)))
        if place := next((place for place in tasks if self._is_beside(name, str(place))), None):
            return f"{_register(place, None)}.{name}"
        package = self._package.split(".")[1:2]  # of a private name, since the real one stands for another package
        is_own = self._top.startswith(PREFIX) and package == [name.partition(".")[0]]
        return f"{self._top}.{name}" if is_own and not import_path.is_reserved(*package) else ""

    def _is_beside(self, name: str, folder: str) -> bool:
        """Return whether ``name`` means a module in ``folder``: also one that is installed, but in no package.

        A module of a package is named by its whole name or relatively, so that there a name alone means what all others
        mean by it, if there is such a module.
        """
        top = name.partition(".")[0]
        found = PathFinder.find_spec(top, [folder])
        if found is None and top not in (*sys.stdlib_module_names, *import_path.NEEDED):
            os.path.exists(os.path.join(folder, f"{top}.py"))  # so that Lookups notes that it is missing
        if found is None or found.origin == self._path:
            return False
        loaded = getattr(sys.modules.get(top), "__spec__", None)
        if loaded and loaded.origin == found.origin and found.origin:
            return False
        try:
            other = loaded or importlib.util.find_spec(top)
        except ValueError:  # __main__
            return False
        if other is None or other.origin in (None, found.origin):
            return True
        return bool(found.origin) and self._package == self._top and not import_path.is_reserved(top)

    def _of_snapshot(self, name: str, snapshot: Snapshot) -> str:
        """Return the private name of ``name`` in the revision; "" if it is installed outside of the working tree."""
        top = name.partition(".")[0]
        if top == "kernel_runner":  # of the working tree, with its kernels/ and models/
            return ""
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # __main__
            return ""
        folders = [os.path.realpath(folder) for folder in ("", *sys.path)]
        if top == "runner":  # of an earlier revision of this project, too
            folders = [folder for folder in folders if folder != str(PACKAGE.parent)]
        elif spec and spec.origin:
            if not spec.has_location or not Path(_holding(spec)).is_relative_to(snapshot.worktree):
                return ""
            folders = [_holding(spec)]
        inside = [Path(folder) for folder in folders if Path(folder).is_relative_to(snapshot.worktree)]
        own = [Path(self._path).parent, Path(self._root)]
        for root in dict.fromkeys([*own, *(snapshot.place(folder) for folder in inside)]):
            if top == "runner" and PACKAGE.is_relative_to(snapshot.worktree) and root == snapshot.place(PACKAGE.parent):
                continue
            if PathFinder.find_spec(top, [str(root)]) is not None:
                return f"{self._package if root == own[0] else _register(root, snapshot)}.{name}"
        return ""


def folders_with_runner(folders: Iterable[str | Path]) -> list[str | Path]:
    """Return the folders that have a ``runner`` of the user's own: there it does not mean this package."""
    specs = ((folder, PathFinder.find_spec("runner", [str(folder)])) for folder in folders)
    return [folder for folder, spec in specs if spec and Path(_holding(spec)) != PACKAGE.parent]


def _holding(spec: ModuleSpec) -> str:
    """Return the folder that holds a module, or the folder of a package."""
    inside = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return os.path.realpath(os.path.dirname(str(inside)))

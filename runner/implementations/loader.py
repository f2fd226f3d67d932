"""Loads a file of a folder as a module with a private name, so that two folders may hold modules of the same name.

Python keeps one module per name, but two versions of a kernel, each beside its own ``helper.py``, are compared in one
process. So each folder gets a package of its own, and an import of a module of the folder is rewritten to an import
from that package when the file is compiled. The modules stay loaded under names that ``torch.compile``, Triton,
``inspect`` and ``pickle`` can look up, and an import inside a function finds the same module as one at the top.

A folder may hold a git revision. Then an import of what the working tree of its repository has, in whatever folder,
is rewritten to an import of what the revision has there.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from runner.kernels.unsupported import Unsupported

if TYPE_CHECKING:
    from runner.implementations.revisions import Snapshot

PREFIX = "folder_"  # of the name of a folder's package
KERNELS = ("runner.kernels", "kernels")  # what files of kernels/ call their package, now and in early revisions
SHARED = ("unsupported", "spans")  # by which kernels and the runner talk to each other, those of a revision too
OPERATOR = re.compile(r"\w+::\w+")  # the name of an operator of torch.library
REGISTERS = ("custom_op", "triton_op", "define")  # functions of torch.library that take such a name


@dataclass(frozen=True)
class _Folder:
    """What the package of a folder is of."""

    root: str
    snapshot: Snapshot | None = None
    aliases: tuple[str, ...] = ()  # names by which its files import from the folder itself


_folders: dict[str, _Folder] = {}  # by the name of the package
_operators: dict[str, str] = {}  # file that registers an operator, by the operator's name


def load(file: Path, root: Path, snapshot: Snapshot | None = None) -> ModuleType:
    """Run ``file``, which lies in ``root`` or below it, and return its module. Each call runs it anew.

    Modules that it imports from ``root`` are loaded once. The name of an installed package or of a module of Python's
    always means that one, even if ``root`` has a module of the same name. A name that the file computes, for
    ``importlib.import_module``, is not rewritten. ``snapshot`` is the git revision that the file is of.

    Raises Unsupported if the file registers an operator of torch.library that another file has registered.
    """
    name = module_name(file, root)
    _register(root, snapshot)
    importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def kernels(root: Path) -> str:
    """Return the package of ``root``, the folder ``kernels/`` of a git revision. Its modules can be imported."""
    name = _register(root, None, KERNELS)
    for module in SHARED:
        sys.modules.setdefault(f"{name}.{module}", importlib.import_module(f"runner.kernels.{module}"))
    vars(sys.modules[name]).setdefault("Unsupported", Unsupported)  # early revisions had it in kernels/__init__.py
    return name


def module_name(file: Path, root: Path) -> str:
    """Return the name under which ``file`` of ``root`` is loaded. It is the same in every process."""
    root = root.resolve()
    return ".".join([_package(root), *file.resolve().relative_to(root).with_suffix("").parts])


def _package(root: Path) -> str:
    return PREFIX + hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]


def _register(root: Path, snapshot: Snapshot | None, aliases: tuple[str, ...] = ()) -> str:
    """Make the package of ``root``, once, and return its name."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    name = _package(root)
    if name not in sys.modules:
        folder = ModuleSpec(name, None, is_package=True)
        folder.submodule_search_locations = [str(root.resolve())]
        sys.modules[name] = importlib.util.module_from_spec(folder)
    _folders.setdefault(name, _Folder(str(root.resolve()), snapshot, aliases))
    return name


class _Finder:
    """Finds the modules of the folders' packages, and has ``_Loader`` load their sources."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Find ``name`` in ``path`` if it belongs to a folder's package; otherwise leave it to Python."""
        spec = PathFinder.find_spec(name, path) if name.startswith(PREFIX) else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Rewrites the imports of a file. It ignores bytecode, which cannot tell an edit of the same second and length."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file as it is now. Raises Unsupported if its operators are another file's."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for operator in _registered(tree):
            if (other := _operators.setdefault(operator, path)) != path:
                raise Unsupported(
                    f"{path} and {other} both register the operator {operator}, and a process has one of that name; "
                    "give it another name in one of them, or run them apart"
                )
        rewritten = ast.fix_missing_locations(_Rewrite(fullname.partition(".")[0]).visit(tree))
        return compile(rewritten, path, "exec", dont_inherit=True)


def _registered(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the operators that a file registers with torch.library: two files would share the last."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in REGISTERS:
            for word in node.args[:1]:
                if isinstance(word, ast.Constant) and OPERATOR.fullmatch(str(word.value)):
                    yield str(word.value)


class _Rewrite(ast.NodeTransformer):
    """Turns imports of the folder's modules into imports from its ``package``."""

    def __init__(self, package: str) -> None:
        self._package, self._folder = package, _folders[package]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """``from a.b import c`` → ``from package.a.b import c``."""
        if node.module and not node.level and (private := self._private(node.module)):
            node.module = private
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        """``import a.b`` → ``import package.a.b, package.a as a``; ``import a as b`` → ``import package.a as b``."""
        names = []
        for alias in node.names:
            if not (private := self._private(alias.name)):
                names.append(alias)
                continue
            top, _, rest = alias.name.partition(".")
            if not alias.asname and rest:
                names.append(ast.alias(private))
            of = private if alias.asname else private.removesuffix(f".{rest}")
            names.append(ast.alias(of, alias.asname or top))
        return [ast.copy_location(ast.Import(names), node)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``import_module("a.b")`` → ``import_module("package.a.b")``."""
        match node:
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)) as word, *_],
            ) if not name.startswith("."):
                word.value = self._private(name) or name
        return self.generic_visit(node)

    def _private(self, name: str) -> str:
        """Return the name in a folder's package of the module that ``name`` means here; "" if it means no such one."""
        for alias in self._folder.aliases:
            if name == alias or name.startswith(f"{alias}."):
                return f"{self._package}{name.removeprefix(alias)}"
        if self._folder.aliases:
            return ""
        if self._folder.snapshot:
            return self._of_snapshot(name, self._folder.snapshot)
        return f"{self._package}.{name}" if self._is_private(name) else ""

    def _is_private(self, name: str) -> bool:
        """Return whether the folder has ``name`` and nothing that is installed has."""
        root = self._folder.root
        top = name.partition(".")[0]
        if top in sys.modules or PathFinder.find_spec(top, [root]) is None:
            return False
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:  # a folder without __init__.py has no origin: any folder of that name
            return True
        return spec.has_location and _holding(spec) in (root, os.path.realpath(os.curdir))

    def _of_snapshot(self, name: str, snapshot: Snapshot) -> str:
        """Return where the revision has ``name``, if it is not installed outside the working tree; else ""."""
        top = name.partition(".")[0]
        if top == "runner":  # its kernels/ and models/ too: a user's file uses those of the working tree
            return ""
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # __main__
            return ""
        folders = [os.path.realpath(folder) for folder in ("", *sys.path)]
        if spec and spec.origin:
            if not spec.has_location or not Path(_holding(spec)).is_relative_to(snapshot.worktree):
                return ""
            folders = [_holding(spec)]
        inside = [Path(folder) for folder in folders if Path(folder).is_relative_to(snapshot.worktree)]
        for root in dict.fromkeys([Path(self._folder.root), *(snapshot.place(folder) for folder in inside)]):
            if PathFinder.find_spec(top, [str(root)]) is not None:
                return f"{_register(root, snapshot)}.{name}"
        return ""


def _holding(spec: ModuleSpec) -> str:
    """Return the folder that holds a module, or the folder of a package."""
    origin = str(spec.origin)
    return os.path.realpath(os.path.dirname(os.path.dirname(origin) if spec.submodule_search_locations else origin))

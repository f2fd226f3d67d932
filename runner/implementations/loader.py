"""Loads a file of a folder as a module with a private name, so that two folders may hold modules of the same name.

Python keeps one module per name, but two versions of a kernel, each beside its own ``helper.py``, are compared in one
process. So each folder gets a package of its own, and an import of a module of the folder is rewritten to an import
from that package when the file is compiled. The modules stay loaded under names that ``torch.compile``, Triton,
``inspect`` and ``pickle`` can look up, and an import inside a function finds the same module as one at the top.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

PREFIX = "folder_"  # of the name of a folder's package


def load(file: Path, root: Path) -> ModuleType:
    """Run ``file``, which lies in ``root`` or below it, and return its module. Each call runs it anew.

    Modules that it imports from ``root`` are loaded once. The name of an installed package or of a module of Python's
    always means that one, even if ``root`` has a module of the same name. A name that the file computes
    (``importlib.import_module``) is not rewritten.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    name = module_name(file, root)
    package = name.partition(".")[0]
    if package not in sys.modules:
        folder = ModuleSpec(package, None, is_package=True)
        folder.submodule_search_locations = [str(root.resolve())]
        sys.modules[package] = importlib.util.module_from_spec(folder)
    importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def module_name(file: Path, root: Path) -> str:
    """Return the name under which ``file`` of ``root`` is loaded. It is the same in every process."""
    root = root.resolve()
    package = PREFIX + hashlib.sha256(str(root).encode()).hexdigest()[:12]
    return ".".join([package, *file.resolve().relative_to(root).with_suffix("").parts])


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
        """Compile the file as it is now."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        rewritten = ast.fix_missing_locations(_Rewrite(fullname.partition(".")[0]).visit(tree))
        return compile(rewritten, path, "exec", dont_inherit=True)


class _Rewrite(ast.NodeTransformer):
    """Turns imports of the folder's modules into imports from its ``package``."""

    def __init__(self, package: str) -> None:
        self._package = package
        (self._root,) = sys.modules[package].__path__

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """``from a.b import c`` → ``from package.a.b import c``."""
        if node.module and not node.level and self._is_private(node.module):
            node.module = f"{self._package}.{node.module}"
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        """``import a.b`` → ``import package.a.b, package.a as a``; ``import a as b`` → ``import package.a as b``."""
        names = []
        for alias in node.names:
            if not self._is_private(alias.name):
                names.append(alias)
                continue
            private, top = f"{self._package}.{alias.name}", alias.name.partition(".")[0]
            if not alias.asname and top != alias.name:
                names.append(ast.alias(private))
            of = private if alias.asname else f"{self._package}.{top}"
            names.append(ast.alias(of, alias.asname or top))
        return [ast.copy_location(ast.Import(names), node)]

    def _is_private(self, name: str) -> bool:
        """Return whether the folder has ``name`` and nothing that is installed has."""
        top = name.partition(".")[0]
        if top in sys.modules or PathFinder.find_spec(top, [self._root]) is None:
            return False
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:  # a folder without __init__.py has no origin: any folder of that name
            return True
        folder = os.path.dirname(os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin)
        return spec.has_location and os.path.realpath(folder) in (self._root, os.path.realpath(os.curdir))

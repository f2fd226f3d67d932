"""The package ``runner`` under a name that no folder of yours has: ``from kernel_runner import bench``.

A program beside a folder called ``runner`` imports that folder by ``import runner``, and both packages may be needed
in one process. So this one loads the files of ``runner`` as modules of its own, and has their imports of ``runner``
rewritten when they are compiled. There is no bytecode of them: an import takes some milliseconds per file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner import Comparison as Comparison
    from runner import Timing as Timing
    from runner import bench as bench
    from runner import do_bench as do_bench
    from runner import load as load

THEIRS, OURS = "runner", __name__
FOLDER = Path(__file__).resolve().parent.with_name(THEIRS)


class _Finder:
    """Finds the modules of this package in the folder of the other one. ``__main__`` alone is a file of this one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.startswith(f"{OURS}.") else None
        if spec and isinstance(spec.loader, SourceFileLoader) and spec.loader.path.startswith(str(FOLDER)):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a file with its imports rewritten. It uses no bytecode: what is on disk is that of ``runner``."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                node.module = _renamed(node.module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    alias.name = _renamed(alias.name)
        return compile(tree, path, "exec", dont_inherit=True)


def _renamed(name: str) -> str:
    return OURS + name.removeprefix(THEIRS) if name.partition(".")[0] == THEIRS else name


sys.meta_path.insert(0, _Finder)
__path__.append(str(FOLDER))
exec(_Loader(OURS, str(FOLDER / "__init__.py")).get_code(OURS), globals())  # noqa: S102 - a file of this project

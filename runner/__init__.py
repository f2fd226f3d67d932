"""A second name of the package ``kernel_runner``, whose modules lie in this folder.

``import runner`` gives that package, and ``import runner.config`` its module ``kernel_runner.config``: one object under
two names. So an exception that is raised through one name is caught through the other.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import kernel_runner

if TYPE_CHECKING:
    from kernel_runner import Comparison as Comparison
    from kernel_runner import Timing as Timing
    from kernel_runner import __version__ as __version__
    from kernel_runner import bench as bench
    from kernel_runner import cuda_kernel as cuda_kernel
    from kernel_runner import do_bench as do_bench
    from kernel_runner import load as load


class _SecondName:
    """Finds ``runner.x``, and loads ``kernel_runner.x`` for it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module of this package; ``__main__`` runs under its own name."""
        if (
            not name.startswith("runner.")
            or name == "runner.__main__"
            or sys.modules.get("runner") is not kernel_runner
        ):
            return None
        spec = find_spec(f"kernel_{name}")
        # It has what a loader needs. For a package, python -m looks for its __main__.
        return spec and ModuleSpec(name, self, is_package=bool(spec.submodule_search_locations))  # type: ignore[arg-type]

    def get_code(self, name: str) -> CodeType | None:
        """Return the code of a module that ``python -m runner.x`` runs."""
        loader: Any = getattr(find_spec(f"kernel_{name}"), "loader", None)
        code: CodeType | None = loader.get_code(f"kernel_{name}")
        return code

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that has two names."""
        module = import_module(f"kernel_{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back, which the import has replaced."""
        module.__spec__ = module.__spec__ and module.__spec__.loader_state


if __name__ == "runner":
    sys.meta_path.insert(0, _SecondName())
    sys.modules[__name__] = kernel_runner

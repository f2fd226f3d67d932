"""A declarative experiment runner for GPU operations, and its timer for any Python program: ``kernel_runner.bench``.

The modules of this package lie in the folder ``runner`` beside this one, and ``import runner`` is a second name of the
package. A program may have a package of its own that is called ``runner``: then this name is the one to use.
Importing this imports nothing else: a name below is imported when it is used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.api.bench import Comparison as Comparison
    from runner.api.bench import Timing as Timing
    from runner.api.bench import bench as bench
    from runner.api.do_bench import do_bench as do_bench
    from runner.api.frame import load as load
    from runner.kernels.cuda_function import cuda_kernel as cuda_kernel

__version__ = "0.1.0"
__path__ = [str(Path(__file__).resolve().parent.with_name("runner"))]

# No module of the folder may have the name of one of them: importing it would replace the function.
PUBLIC = {
    "bench": ".api.bench",
    "Comparison": ".api.bench",
    "Timing": ".api.bench",
    "load": ".api.frame",
    "do_bench": ".api.do_bench",
    "cuda_kernel": ".kernels.cuda_function",
}


def __getattr__(name: str) -> Any:  # the type is that of the import above
    # ``from runner import config`` comes here too, before it imports that module; ``import runner.config`` does not.
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = globals()[name] = getattr(import_module(PUBLIC[name], __name__), name)
    return public


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

"""A declarative experiment runner for GPU operations, and its timer for any Python program: ``runner.bench``.

Importing this imports nothing else: a name below is imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.report.bench import Comparison as Comparison
    from runner.report.bench import Timing as Timing
    from runner.report.bench import bench as bench
    from runner.report.frame import load as load
    from runner.timing.in_process import do_bench as do_bench

__version__ = "0.1.0"

# No module of this package may have the name of one of them: importing it would replace the function.
PUBLIC = {
    "bench": ".report.bench",
    "Comparison": ".report.bench",
    "Timing": ".report.bench",
    "load": ".report.frame",
    "do_bench": ".timing.in_process",
}


def __getattr__(name: str) -> Any:  # the type is that of the import above
    # ``from runner import config`` comes here too, before it imports that module; ``import runner.config`` does not.
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(PUBLIC[name], __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

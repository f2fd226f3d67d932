"""Names for parts of a call: NVTX ranges or profiler records while a profiler runs, and nothing at other times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Named = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()
_named: Named | None = None


def span(name: str) -> AbstractContextManager[object]:
    """Return a context manager that names what runs inside it, if a profiler watches.

    It does nothing in code that torch.compile traces.
    """
    if torch.compiler.is_compiling() or _named is None:  # in this order: else torch.compile would guard on _named
        return _NOTHING
    return _named(name)


@contextmanager
def watched(named: Named) -> Iterator[None]:
    """Enter ``named(name)`` for every span inside, such as ``torch.cuda.nvtx.range`` or ``record_function``."""
    global _named
    before, _named = _named, named
    try:
        yield
    finally:
        _named = before

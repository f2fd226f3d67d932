"""Named parts of a call, for whoever watches it: NVTX ranges under a profiler, and nothing at other times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Named = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()
_named: Named | None = None


def span(name: str) -> AbstractContextManager[object]:
    """What is done within is called ``name`` where somebody watches; code that torch.compile traces has no names."""
    if torch.compiler.is_compiling() or _named is None:  # in this order: else torch.compile would look at _named too
        return _NOTHING
    return _named(name)


@contextmanager
def watched(named: Named) -> Iterator[None]:
    """Meanwhile, ``named`` is told of every span: ``torch.cuda.nvtx.range``, ``torch.profiler.record_function``."""
    global _named
    before, _named = _named, named
    try:
        yield
    finally:
        _named = before

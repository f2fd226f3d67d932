"""Fill memory that a call may allocate, so that what it does not write of its outputs is not right by chance."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

# -6.02 in float32, and far from zero in every type. So is its complement, 0.747: glibc fills freed memory with it, and
# hands a part of that out as it is.
BYTE = 0xC0
FILLED = ({BYTE}, {BYTE ^ 0xFF})  # the bytes of an element that no call has written
M_PERTURB = -6  # option of mallopt


@contextmanager
def filled() -> Iterator[None]:
    """Fill memory that glibc's malloc returns in this context: all blocks above 1 KiB, and most smaller ones."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: None)
    mallopt(M_PERTURB, BYTE ^ 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


def fill_cached(sizes: Sequence[tuple[int, torch.device]]) -> None:
    """Fill free memory of GPUs from which the next call gets its outputs, of these sizes in bytes."""
    with suppress(torch.OutOfMemoryError):
        # Temporaries of the call may take some.
        for block in [torch.empty(size, dtype=torch.uint8, device=device) for size, device in [*sizes] * 4]:
            block.fill_(BYTE)

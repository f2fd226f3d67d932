"""The exception that an implementation raises if it cannot run these tensors here, and common reasons for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


TRITON_NEEDS_GPU = (
    "Triton kernels need an NVIDIA GPU; to check this one on a CPU: debug=interpret, "
    "or without the runner TRITON_INTERPRET=1"
)
CUDA_NEEDS_GPU = (
    "CUDA C++ needs tensors on an NVIDIA GPU; "
    "to compile this kernel without one: measure=inspect measure.inspect.arch=90"
)
INTERPRETED_BFLOAT16 = "Triton's interpreter truncates to bfloat16 where a GPU rounds; use float16, or a GPU"


class Unsupported(Exception):
    """The implementation cannot run these tensors on this machine. The message says what would help."""


@contextmanager
def needs(package: str, *, extra: str) -> Iterator[None]:
    """Return a context in which a kernel's file imports an optional ``package``.

    ``package`` is its name for pip, as a literal: the version of the package then counts in the fingerprint of a row.

    Raises:
        Unsupported: the import fails. The message says how to install ``extra`` of this project.

    """
    try:
        yield
    except ImportError as error:
        help_ = f"pip install -e '.[{extra}]' in the checkout"
        raise Unsupported(f"this needs the package {package}: {help_} ({error})") from error


def require_cuda(x: Tensor, library: str) -> None:
    """Raise Unsupported if ``x`` is not on a GPU, which the kernels of ``library`` need."""
    if not x.is_cuda:
        raise Unsupported(f"kernels of {library} need an NVIDIA GPU; run with device=cuda")


ALIGNED = 16  # bytes that the widest load of a GPU reads at once
VECTORS = ("torch.float32", "torch.float16", "torch.bfloat16")  # this module does not import torch


def require_aligned(x: Tensor, library: str) -> None:
    """Raise Unsupported unless ``x`` begins at a multiple of ``ALIGNED`` bytes, as kernels of ``library`` assume."""
    if x.data_ptr() % ALIGNED:
        raise Unsupported(
            f"kernels of {library} take tensors that begin at a multiple of {ALIGNED} bytes; copy this one"
        )


def require_rows(x: Tensor, library: str, most: float = inf) -> None:
    """Raise Unsupported unless ``x`` is on a GPU, of a dtype in ``VECTORS``, in rows of up to ``most`` elements."""
    require_cuda(x, library)
    if str(x.dtype) not in VECTORS:
        raise Unsupported(f"kernels of {library} for rows take float32, float16 and bfloat16, not {x.dtype}")
    if x.shape[-1] > most:
        raise Unsupported(f"this kernel of {library} takes rows of up to {most} elements, not {x.shape[-1]}")


def require_vectors(x: Tensor, library: str) -> None:
    """Raise Unsupported unless ``require_rows`` passes and rows are a multiple of ``ALIGNED`` bytes."""
    require_rows(x, library)
    if x.shape[-1] * x.element_size() % ALIGNED:
        each = ALIGNED // x.element_size()
        raise Unsupported(f"kernels of {library} take rows of a multiple of {each} elements in {x.dtype}")

"""A copy of as many bytes as the workload must move: what its memory traffic alone costs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runner.implementations import Implementation
from runner.timing import Call

if TYPE_CHECKING:
    from torch import Tensor

ITEM_BYTES = 8  # a float32 that is read, and one that is written


@dataclass(frozen=True)
class Copy(Implementation):
    """Half of the workload's ``bytes_min`` is read, and half is written."""

    CHECKED = False

    def load(self, op: str) -> Callable[..., Tensor]:
        """Return a function that is never called: ``wrap_call`` replaces the whole call."""
        return lambda *tensors, **options: tensors[0]

    def wrap_call(self, call: Call, device: str) -> Call:
        """Return a call that reads and writes random numbers, with a new output each time, as others have.

        It changes their sign, so that a GPU runs a kernel. A plain copy is a copy node in a CUDA graph, which reaches
        two thirds of the rate above half a GiB.
        """
        import torch

        assert call.work
        generator = torch.Generator(device).manual_seed(0)
        count = max(1, call.work.bytes_min // ITEM_BYTES)
        source = torch.empty(count, device=device).normal_(generator=generator)
        return Call(lambda: (source.neg(),), work=replace(call.work, flops=0), inputs=(source,))

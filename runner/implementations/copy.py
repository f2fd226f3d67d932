"""A copy of as many bytes as the workload must move: the cost of its memory traffic alone."""

from dataclasses import dataclass, replace

from ..timing.call import Call
from . import Function, Implementation

ITEM_BYTES = 8  # a float32 read and a float32 written


@dataclass(frozen=True)
class Copy(Implementation):
    """A copy that reads half of the workload's ``bytes_min`` and writes the other half."""

    CHECKED = False

    def load(self, op: str) -> Function:
        """Return a function that is never called: ``wrap_call`` replaces the whole call."""
        return lambda *tensors, **options: tensors[0]

    def wrap_call(self, call: Call, device: str) -> Call:
        """Return a call that reads and writes random numbers, with a new output each time, as in other calls.

        It changes their sign, so that a GPU runs a kernel. A plain copy is a copy node in a CUDA graph, which reaches
        two thirds of the rate above half a GiB.
        """
        import torch

        assert call.work
        generator = torch.Generator(device).manual_seed(0)
        count = max(1, call.work.bytes_min // ITEM_BYTES)
        source = torch.empty(count, device=device).normal_(generator=generator)
        return Call(lambda: (source.neg(),), work=replace(call.work, flops=0, algo_bytes=0), inputs=(source,))

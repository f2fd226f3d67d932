"""How tensors lie in memory, for workloads with a field ``layout``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal["contiguous", "transposed", "strided", "offset"]


@dataclass(frozen=True, kw_only=True)
class WithLayout(Workload):
    """A workload whose inputs, upstream gradients among them, can lie in memory in several ways."""

    layout: Layout  # contiguous: as ``inputs`` draws them

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the input tensors on ``device``, drawn from ``seed``: the same numbers in every layout."""
        return tuple(laid_out(tensor, self.layout) for tensor in super().draw_inputs(device, seed))


def laid_out(tensor: Tensor, layout: Layout | Literal["channels_last"]) -> Tensor:
    """Return ``tensor`` with the same numbers in another layout.

    contiguous: as it is; transposed: the last two dimensions are stored in the other order; channels_last: the second
    of four dimensions is stored last; strided: at every second number of the storage; offset: from the second number of
    the storage on. Tensors that are not floating, without numbers, or without these dimensions stay as they are.
    """
    import torch

    if layout == "contiguous" or not tensor.is_floating_point() or not tensor.dim() or not tensor.numel():
        return tensor
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor
    if layout == "channels_last":
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
    strides = torch.empty_like(tensor, device="meta").stride()  # its own, if it has no gaps
    if layout == "strided":
        block = torch.empty(2 * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        return block.as_strided(tensor.shape, [2 * stride for stride in strides]).copy_(tensor)
    block = torch.empty(1 + tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return block.as_strided(tensor.shape, strides, 1).copy_(tensor)

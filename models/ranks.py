"""A base of workloads that several ranks compute together, each with inputs and outputs of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .workload import Size, Workload, draw_on

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class OnRanks(Workload):
    """A computation of ``ranks`` processes. Inputs, outputs, operations and bytes are those of one of them."""

    ranks: Size
    rank: int = 0  # of this process; not in the YAML file
    world_size: int = 1  # processes that there are; not in the YAML file

    def require_multiple(self, name: str, of: str) -> None:
        """Raise ValueError unless the field ``name`` is a multiple of the field ``of``."""
        value, divisor = getattr(self, name), getattr(self, of)
        if value % divisor:
            raise ValueError(f"{name}={value} is not a multiple of {of}={divisor}")

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the input tensors on ``device``, drawn from ``seed``: other numbers on each rank."""
        return self.inputs(draw_on(device, self.dtype, self.data, seed + self.rank))


def gathered(x: Tensor) -> Tensor:
    """Return ``x`` of every rank, [ranks, *x.shape]. All ranks call it with tensors of the same shape."""
    import torch.distributed as dist

    every = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather(list(every), x.contiguous())
    return every

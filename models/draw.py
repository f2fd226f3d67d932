"""Draw: random input tensors on a device, the same for the same seed. Imports torch, so only the worker imports it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from runner.models.workload import Data, Draw, Stored

# Each fills a new tensor in place: x, scale, generator -> x.
FILL: dict[str, Callable[[Tensor, float, Generator], Tensor]] = {
    "normal": lambda x, scale, generator: x.normal_(std=scale, generator=generator),
    "uniform": lambda x, scale, generator: x.uniform_(-scale, scale, generator=generator),
    "zeros": lambda x, scale, generator: x.zero_(),
}


def draw_on(device: str | torch.device, dtype: Stored, data: Data, seed: int) -> Draw:
    """A Draw with a generator of its own on ``device``: the n-th tensor depends on the seed and the n-1 before it.

    Values are drawn in float32 and rounded to ``dtype`` (float64 is drawn in float64), so narrower types hold the
    float32 values to within one rounding. A CPU and a GPU draw different values from one seed.
    """
    stored: torch.dtype = getattr(torch, dtype)
    drawn = torch.float64 if stored == torch.float64 else torch.float32  # promote_types refuses float8
    generator = Generator(device).manual_seed(seed)
    fill = FILL[data]

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return fill(torch.empty(shape, dtype=drawn, device=device), scale, generator).to(stored)

    return draw

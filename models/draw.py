"""Draw random input tensors on a device from a seed. Only the worker imports this module, since it imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from runner.models.workload import Data, Draw, Stored

# Functions that fill a new tensor in place: x, scale, generator -> x.
FILL: dict[str, Callable[[Tensor, float, Generator], Tensor]] = {
    "normal": lambda x, scale, generator: x.normal_(std=scale, generator=generator),
    "uniform": lambda x, scale, generator: x.uniform_(-scale, scale, generator=generator),
    "zeros": lambda x, scale, generator: x.zero_(),
}


def draw_on(device: str | torch.device, dtype: Stored, data: Data, seed: int) -> Draw:
    """Return a Draw with its own generator on ``device``. A tensor depends on the seed and the tensors drawn before it.

    Values are drawn in float32 and rounded to ``dtype``; float64 is drawn in float64. So narrower dtypes hold the
    float32 values after one rounding. A CPU and a GPU draw different values from the same seed.
    """
    stored: torch.dtype = getattr(torch, dtype)
    drawn = torch.float64 if stored == torch.float64 else torch.float32  # promote_types does not accept float8
    generator = Generator(device).manual_seed(seed)
    fill = FILL[data]

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return fill(torch.empty(shape, dtype=drawn, device=device), scale, generator).to(stored)

    return draw

"""Training of a small convolutional network on images that it makes: load, forward, backward, update, clear gradients.

Two blocks (convolution of 3 x 3, batch norm, ReLU, 2 x 2 max pooling) and an MLP of two layers; the loss is the mean
cross entropy. An implementation computes the logits. All else is the same for all, in ``runner.models.training``.

Errors of one step change the gradients of the next, so how far a right training may be from the exact one comes from
trainings: torch's own in the dtype of the workload, from inputs that differ by a rounding. The automatic tolerance
would run each operation of 100 steps a dozen times with errors of its own, for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call
from .layout import laid_out
from .rounding import FLOOR
from .workload import ITEMSIZE, UNIT, Draw, Expected, Size, Workload

if TYPE_CHECKING:
    from torch import Generator, Tensor

SIDE = 3  # rows and columns of a filter
TRAININGS = 4
DEVIATIONS = 8.0  # root mean squares of the errors of these trainings that are allowed


@dataclass(frozen=True, kw_only=True)
class CnnStep(Workload):
    """``steps`` steps of training with SGD. Each loads a batch of images, of which there are ``batches``, in turn."""

    batch: Size  # images
    channels: Size  # of an image
    size: Size  # rows and columns of an image
    filters: Size  # of the first block; the second has twice as many
    hidden: Size  # features between the two layers of the head
    classes: Size
    steps: Size  # in one call
    batches: Size  # different ones, in the host's memory
    loading: Literal["pageable", "pinned", "overlapped"]  # of each batch, from the host's memory
    lr: Annotated[float, "above 0"]  # learning rate
    layout: Literal["contiguous", "channels_last"]  # of images and filters
    dtype: Literal["float32", "float16", "bfloat16"]

    def __post_init__(self) -> None:
        if self.size < 4:
            raise ValueError(f"size={self.size}: two poolings leave nothing of an image; give a size of at least 4")

    @property
    def features(self) -> int:
        """Numbers of an image after the second block."""
        return 2 * self.filters * (self.size // 2 // 2) ** 2

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return images [batches, batch, channels, size, size], targets [batches, batch], int64, and parameters.

        These are w, gamma and beta of two blocks, then weight and bias of two layers.
        """
        import torch

        sides = (self.channels, self.filters, 2 * self.filters)
        images = draw(self.batches, self.batch, self.channels, self.size, self.size)
        order = draw(self.batches, self.batch)
        targets = (torch.special.ndtr(order.double()) * self.classes).long().clamp_(0, self.classes - 1)
        params: list[Tensor] = []
        for before, after in pairwise(sides):
            params += [draw(after, before, SIDE, SIDE, scale=sqrt(2 / before) / SIDE), 1 + draw(after, scale=0.1)]
            params.append(draw(after, scale=0.1))
        for before, after in ((self.features, self.hidden), (self.hidden, self.classes)):
            params += [draw(after, before, scale=sqrt(1 / before)), draw(after, scale=0.1)]
        return images, targets, *(laid_out(param, self.layout) for param in params)

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Return all steps, with ``function`` as their forward. Its outputs are the parameters, copies of the inputs.

        Raises Unsupported without a GPU, unless ``loading`` is pageable.
        """
        import torch.nn.functional as F

        from . import training
        from .loading import Loader

        images, targets, *initial = inputs
        params = training.copies(initial)
        batches = [(laid_out(x, self.layout), target) for x, target in zip(images, targets, strict=True)]
        loader = Loader(batches, self.steps, self.loading)

        call = training.train(
            lambda: function(loader.batch[0], *params),
            self.steps,
            params,
            accumulate=False,
            lr=self.lr,
            loss_of=lambda logits: F.cross_entropy(logits, loader.batch[1]),
            load=loader.load,
        )
        return replace(call, reads_inputs=False)  # they are copied above

    def formula(self, *tensors: Tensor) -> Tensor:
        """Return the logits."""
        import torch.nn.functional as F

        x, *params = tensors
        for w, gamma, beta in (params[:3], params[3:6]):
            z = F.batch_norm(F.conv2d(x, w, padding=SIDE // 2), None, None, gamma, beta, training=True)
            x = F.max_pool2d(F.relu(z), 2)
        a, b, c, d = params[6:]
        return F.linear(F.relu(F.linear(x.flatten(1), a, b)), c, d)

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return all parameters after the last step."""
        import torch

        floating = [tensor.is_floating_point() for tensor in inputs]
        exact = self._trained([x.double() if real else x for x, real in zip(inputs, floating, strict=True)])
        generator = torch.Generator(inputs[0].device).manual_seed(0)
        squares = [torch.zeros_like(param) for param in exact]
        for number in range(TRAININGS):
            near = [
                x if not real or not number else self._near(x, generator)
                for x, real in zip(inputs, floating, strict=True)
            ]
            for square, param, value in zip(squares, self._trained(near), exact, strict=True):
                square += (param.double() - value).square() / TRAININGS
        names = [f"{name}{block}" for block in (1, 2) for name in ("w", "gamma", "beta")] + ["a", "b", "c", "d"]
        text = f"{UNIT[self.dtype]:.1e} |r| + {DEVIATIONS:g} deviations of trainings in {self.dtype}"
        return tuple(
            Expected(
                name=name,
                value=value,
                atol=DEVIATIONS * (square.sqrt() + square.mean().sqrt()) + FLOOR[self.dtype],
                rtol=UNIT[self.dtype],
                tolerance=text,
            )
            for name, value, square in zip(names, exact, squares, strict=True)
        )

    def _trained(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters after a training by the formula; how batches are loaded makes no difference."""
        return [*replace(self, loading="pageable").call(self.formula, tuple(inputs)).run()]

    def _near(self, tensor: Tensor, generator: Generator) -> Tensor:
        """Return ``tensor`` with a random rounding of each number."""
        noise = tensor.double().uniform_(-1, 1, generator=generator)
        return (tensor.double() * (1 + UNIT[self.dtype] * noise)).to(tensor.dtype)

    def flops(self) -> int:
        """2 for each term of convolutions and products, forward, and twice that backward, all times ``steps``.

        The first convolution has no gradient of its images. All else is left out.
        """
        half = self.size // 2
        first = self.size**2 * self.channels * self.filters * SIDE**2
        rest = half**2 * 2 * self.filters**2 * SIDE**2 + self.hidden * (self.features + self.classes)
        return 2 * self.steps * self.batch * (2 * first + 3 * rest)

    def bytes_min(self) -> int:
        """Images and targets of every step, read from the host's memory; parameters, read and written once per call."""
        params = SIDE**2 * self.filters * (self.channels + 2 * self.filters) + 6 * self.filters
        params += self.hidden * (self.features + 1) + self.classes * (self.hidden + 1)
        images = self.steps * self.batch * self.channels * self.size**2
        return (images + 2 * params) * ITEMSIZE[self.dtype] + self.steps * self.batch * 8

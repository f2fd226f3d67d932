"""Training of a small convolutional network on images that it makes: load, forward, backward, update, clear gradients.

Two blocks (convolution of 3 x 3, batch norm, ReLU, 2 x 2 max pooling) and an MLP of two layers; the loss is the mean
cross entropy. An implementation computes the logits. All else is the same for all, in ``runner.models.training``.

Its tolerance is not automatic, since that would run each operation of 100 steps a dozen times with errors of its own.
The first step, one in the middle and the last are judged, each from the training's own parameters before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call
from .layout import laid_out
from .workload import ITEMSIZE, Draw, DType, Expected, Outputs, Size, Workload

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 3  # rows and columns of a filter


@dataclass(frozen=True, kw_only=True)
class CnnStep(Workload):
    """``steps`` steps of training with SGD. Each loads a batch of images, of which there are ``batches``, in turn.

    Parameters are stored in float32: an update is often less than the last digit of one in 16 bits. An implementation
    gets them in ``dtype``, as it gets images.
    """

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
    def output_dtype(self) -> DType:
        """float32: that of the stored parameters."""
        return "float32"

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
        """Return all steps, with ``function`` as their forward.

        Its outputs are the parameters after all steps, then copies of those before each of ``stepwise.kept``. Raises
        Unsupported without a GPU, unless ``loading`` is pageable.
        """
        import torch
        import torch.nn.functional as F

        from ..kernels.spans import span
        from . import training
        from .loading import Loader
        from .stepwise import kept

        images, targets, *initial = inputs
        params = training.copies(_masters(initial))
        batches = [(laid_out(x, self.layout), target) for x, target in zip(images, targets, strict=True)]
        loader = Loader(batches, self.steps, self.loading)
        copies = {index: [torch.empty_like(param) for param in params] for index in kept(self.steps)}

        def forward() -> Tensor:
            x = loader.batch[0]
            return function(x, *(param.to(x.dtype) for param in params))

        def load(index: int) -> None:
            if index in copies:  # for the check, and in no part of a step
                with torch.no_grad():
                    torch._foreach_copy_(copies[index], params)
            with span("load"):
                loader.load(index)

        call = training.train(
            forward,
            self.steps,
            params,
            accumulate=False,
            lr=self.lr,
            loss_of=lambda logits: F.cross_entropy(logits, loader.batch[1]),
            load=load,
        )
        train, others = call.run, [copy for index in kept(self.steps) for copy in copies[index]]
        return replace(call, run=lambda: (*train(), *others), reads_inputs=False)  # ``inputs`` are copied above

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
        """Raise NotImplementedError: ``expected_outputs`` is in its place."""
        raise NotImplementedError

    def expected_outputs(self, inputs: tuple[Tensor, ...], *, quick: bool = False) -> Outputs:
        """Return what judges the parameters after all steps, and before and after some of them.

        A check takes the time of half a training of 100 steps or more, so ``quick`` judges the first step and the last.
        """
        from .stepwise import Stepwise

        images, targets, *start = (tensor.clone() for tensor in inputs)  # which may change later
        alone = replace(self, steps=1, batches=1, loading="pageable")

        def step(index: int, wide: bool, params: Sequence[Tensor]) -> Sequence[Tensor]:
            place = slice(index % self.batches, index % self.batches + 1)
            batch = images[place].double() if wide else images[place]
            after: tuple[Tensor, ...] = alone.call(self.formula, (batch, targets[place], *params)).run()
            return after

        names = [f"{name}{block}" for block in (1, 2) for name in ("w", "gamma", "beta")] + ["a", "b", "c", "d"]
        return Stepwise(step, _masters(start), names, self.steps, self.dtype, self.tf32, quick)

    def flops(self) -> int:
        """2 for each term of convolutions and products, forward, and twice that backward, all times ``steps``.

        The first convolution has no gradient of its images. All else is left out.
        """
        half = self.size // 2
        first = self.size**2 * self.channels * self.filters * SIDE**2
        rest = half**2 * 2 * self.filters**2 * SIDE**2 + self.hidden * (self.features + self.classes)
        return 2 * self.steps * self.batch * (2 * first + 3 * rest)

    def bytes_min(self) -> int:
        """Images and targets of each step, written by the copy and read once; parameters, read and written once a call.

        This is the traffic of the GPU's memory: that of the host's memory is half the first.
        """
        params = SIDE**2 * self.filters * (self.channels + 2 * self.filters) + 6 * self.filters
        params += self.hidden * (self.features + 1) + self.classes * (self.hidden + 1)
        images = self.steps * self.batch * self.channels * self.size**2
        return 2 * images * ITEMSIZE[self.dtype] + 8 * params + 16 * self.steps * self.batch


def _masters(params: Sequence[Tensor]) -> list[Tensor]:
    """Return parameters in float32, or as they are in float64."""
    return [param if param.element_size() == 8 else param.float() for param in params]

"""A block of a decoder, as in Llama or GPT-2: attention and an MLP, each after a norm and added to its input.

An implementation computes the forward pass. Loss, backward and update are the same for all implementations, in
``runner.models.training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from ..timing.call import Call, Work
from .automatic import Automatic
from .mlp import ADAMW
from .workload import ITEMSIZE, Draw, DType, Size, options_for

if TYPE_CHECKING:
    from torch import Tensor

THETA = 500000.0  # base of the rotary angles, as in Llama 3
SCORES = 2**25  # of the attention that the reference computes at once
BEFORE = 1000  # steps before the one that is computed: no bias correction makes an update of a sign


@dataclass(frozen=True, kw_only=True)
class TransformerBlock(Automatic):
    """y of x [batch, length, dim]; the loss is the mean squared difference of y and a target."""

    style: Literal["llama", "gpt2"]  # RMSNorm, rotary embedding, SwiGLU; or LayerNorm, GELU, biases
    batch: Size  # sequences
    length: Size  # tokens of a sequence
    dim: Size  # features
    heads: Size  # of queries
    kv_heads: Size  # of keys and values; each is read by heads / kv_heads heads of queries
    d: Size  # numbers of a head
    hidden: Size  # features of the MLP
    eps: Annotated[float, "above 0"]  # of the norms
    pass_: Literal["fwd", "fwd_bwd", "train_step"]  # forward; with backward; with backward and update
    optimizer: Literal["sgd", "adamw", "adamw_fused", "adamw_triton"]  # of train_step
    autocast: Literal["none", "bfloat16"]  # dtype of torch.autocast around the forward
    lr: Annotated[float, "above 0"]  # learning rate of train_step
    dtype: Literal["float32", "bfloat16"]

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.style == "llama" and self.d % 2:
            raise ValueError(f"d={self.d}: the rotary embedding turns pairs of numbers; give an even d")
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(f"autocast: with dtype={self.dtype} nothing is left to cast; give dtype=float32")
        if (self.pass_, self.optimizer, self.dtype) == ("train_step", "adamw_fused", "bfloat16"):
            raise ValueError(
                "optimizer: adamw_fused takes moments of the parameters' dtype, and these are float32; give "
                "optimizer=adamw or adamw_triton, or dtype=float32 with autocast=bfloat16"
            )

    @property
    def computed(self) -> DType:
        """Type of products and activations."""
        return self.dtype if self.autocast == "none" else self.autocast

    @property
    def how(self) -> str:
        """Say whether the reference computes all scores of the attention at once."""
        scores = self.batch * self.heads * self.length**2
        return "; reference in blocks of heads" if scores > SCORES else ""

    @property
    def names(self) -> tuple[str, ...]:
        """y; with a backward the gradients; for train_step the parameters first, by their places in the block."""
        parts = ("norm1", "qkv", "out", "norm2", "up", "down")
        biases = [""] if self.style == "llama" else ["", " bias"]
        params = [f"{part}{bias}" for part in parts for bias in biases]
        if self.pass_ == "fwd":
            return ("y",)
        gradients = [f"grad of {name}" for name in (["x"] if self.pass_ == "fwd_bwd" else []) + params]
        return ("y", *gradients) if self.pass_ == "fwd_bwd" else (*params, "y", *gradients)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters, norms and biases as vectors."""
        llama = self.style == "llama"
        vectors = [(self.dim,)] if llama else [(self.dim,)] * 2
        wide, up = (self.heads + 2 * self.kv_heads) * self.d, self.hidden * (2 if llama else 1)

        def linear(*shapes: tuple[int, int]) -> list[tuple[int, ...]]:
            return [size for shape in shapes for size in ([shape] if llama else [shape, shape[:1]])]

        of_attention = linear((wide, self.dim), (self.dim, self.heads * self.d))
        return [*vectors, *of_attention, *vectors, *linear((up, self.dim), (self.dim, self.hidden))]

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return x and, for a pass with a loss, the target; for llama the rotary angles; then the parameters.

        Weights have the standard deviation 1 / (features in)^(1/2), which keeps the size of activations; those of norms
        are near 1. The first token of x is so small that its squares are about eps: without eps, the first norm would
        be 1.4 times as large there.
        """
        import torch

        x = [draw(self.batch, self.length, self.dim) for _ in range(1 if self.pass_ == "fwd" else 2)]
        params = [draw(*shape, scale=1 / sqrt(shape[-1]) if shape[1:] else 0.1) for shape in self.shapes()]
        x[0][0, 0] *= sqrt(self.eps)
        for weight_of_norm in (params[0], params[len(params) // 2]):  # the shapes of both halves begin with a norm
            weight_of_norm += 1
        if self.style == "gpt2":
            return (*x, *params)
        position = torch.arange(self.length, dtype=torch.float64)[:, None]
        angle = position * THETA ** (-torch.arange(0, self.d, 2, dtype=torch.float64) / self.d)
        return (*x, torch.stack([angle.cos(), angle.sin()]).to(x[0].device, torch.float32), *params)

    def options(self) -> Mapping[str, object]:
        """Return what the shapes of the tensors do not tell."""
        return {name: getattr(self, name) for name in ("style", "heads", "kv_heads", "eps")}

    def _split(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """Return x, the target if there is one, the angles if there are some, and the parameters."""
        x, *rest = inputs
        params = len(self.shapes())
        others = rest[:-params]
        has_target = self.pass_ != "fwd"
        return x, others[:has_target], others[has_target:], rest[-params:]

    def call(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
        """Return the pass, with ``function`` as its forward. A training step changes copies of ``inputs``."""
        import torch.nn.functional as F

        from . import training

        x, target, angles, initial = self._split(inputs)
        options = options_for(function, self.options(), len(inputs) - len(target))
        if self.pass_ == "fwd_bwd":
            x, *initial = training.leaves([x, *initial])
        elif self.pass_ == "train_step":
            initial = training.copies(initial)

        def forward() -> Tensor:
            first = training.leaves([x])[0] if self.pass_ == "train_step" else x
            return function(first, *angles, *initial, **options)

        if self.autocast != "none":
            forward = training.autocast(forward, x, self.autocast)
        if self.pass_ == "fwd":
            return training.forward_only(forward, 1)
        loss_of = partial(F.mse_loss, target=target[0])
        if self.pass_ == "fwd_bwd":
            return training.forward_backward(forward, 1, [x, *initial], accumulate=False, loss_of=loss_of)
        return training.train(
            forward,
            1,
            initial,
            accumulate=False,
            lr=self.lr,
            adamw=self._adamw(),
            before=BEFORE,
            second=self._second(),
            loss_of=loss_of,
            with_y=True,
            with_gradients=True,
        )

    def _adamw(self) -> Callable[..., object] | None:
        """Return the step of AdamW by the implementation that the optimizer names; None for sgd."""
        name, _, implementation = self.optimizer.partition("_")
        if name == "sgd":
            return None
        module = import_module(f"..kernels.adamw.{implementation or 'torch'}", __package__)
        return partial(module.adamw, **ADAMW)

    def _second(self) -> float:
        """Return second moments of about the size of squared gradients, as after many steps.

        From moments of 0, AdamW moves a parameter by the sign of its gradient, which rounding may turn.
        """
        return 1 / (self.batch * self.length * self.dim**2)

    def outputs_of(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return y for fwd; y and the gradients of x and the parameters for fwd_bwd.

        For train_step return the new parameters, y, and the gradients of the parameters: in bfloat16, an update is
        little more than the last digit of its parameter, and would not tell a forward that is 1 % off.
        """
        import torch
        import torch.nn.functional as F

        x, target, angles, params = self._split(inputs)
        if self.pass_ == "fwd":
            return (self._formula(x, angles, params),)
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *params)]
        with torch.enable_grad():
            y = self._formula(leaves[0], angles, leaves[1:])
            gradients = torch.autograd.grad(F.mse_loss(y, target[0]), leaves)
        if self.pass_ == "fwd_bwd":
            return (y.detach(), *gradients)
        return (*map(self._updated, params, gradients[1:]), y.detach(), *gradients[1:])

    def _updated(self, param: Tensor, gradient: Tensor) -> Tensor:
        """Return a parameter after the update.

        The decays are results of a product with 1, so that they may be rounded as other results are.
        """
        import torch

        if self.optimizer == "sgd":
            return param - self.lr * gradient
        wide = torch.promote_types(param.dtype, torch.float32)
        first, second = (
            torch.full((), ADAMW[name], dtype=wide, device=param.device) * 1 for name in ("beta1", "beta2")
        )
        m = (1 - first) * gradient.to(wide)
        v = second * self._second() + (1 - second) * gradient.to(wide).square()
        divisor = (v / (1 - second ** (BEFORE + 1))).sqrt() + ADAMW["eps"]
        update = self.lr / (1 - first ** (BEFORE + 1)) * m / divisor
        return (param * (1 - self.lr * ADAMW["weight_decay"]) - update).to(param.dtype)

    def _formula(self, x: Tensor, angles: list[Tensor], params: list[Tensor]) -> Tensor:
        """Return y by operators of torch."""
        import torch
        import torch.nn.functional as F

        from .blocked_attention import attention

        narrow = getattr(torch, self.computed)
        llama, take = self.style == "llama", iter(params)

        def norm(x: Tensor) -> Tensor:
            if llama:
                return F.rms_norm(x, (self.dim,), next(take), self.eps)
            return F.layer_norm(x, (self.dim,), next(take), next(take), self.eps)

        def linear(x: Tensor) -> Tensor:
            return F.linear(x.to(narrow), next(take).to(narrow), None if llama else next(take).to(narrow))

        qkv = linear(norm(x)).unflatten(-1, (-1, self.d)).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 1)
        if llama:
            q, k = self._rotated(q, angles[0]), self._rotated(k, angles[0])
        y = attention(q, k, v, SCORES)
        x = x + linear(y.transpose(1, 2).flatten(2)).to(x.dtype)
        h = linear(norm(x))
        if llama:
            gate, up = h.chunk(2, -1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(h, approximate="tanh")
        return x + linear(h).to(x.dtype)

    def _rotated(self, x: Tensor, angles: Tensor) -> Tensor:
        """Return x [..., length, d] with numbers j and j + d / 2 turned by the angle of their position."""
        import torch

        (cos, sin), first, second = angles, x[..., : self.d // 2], x[..., self.d // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def flops(self) -> int:
        """Products alone, as of linear layers and attention; backward has two for each of a linear layer.

        Attention has two products forward and five backward, as fused kernels do, for the pairs that a query sees.
        """
        tokens, linear = self.batch * self.length, sum(shape[0] * shape[1] for shape in self.shapes() if shape[1:])
        pairs = self.batch * self.heads * self.length * (self.length + 1) // 2
        backward = self.pass_ != "fwd"
        return 2 * tokens * linear * (3 if backward else 1) + 2 * self.d * pairs * (7 if backward else 2)

    def bytes_min(self) -> int:
        """Input x and parameters, read, and y (fwd), y and gradients (fwd_bwd) or parameters (train_step), written.

        Llama's rotary angles are read. With a loss the target is read too, and both moments of AdamW are read and
        written.
        """
        rows = self.batch * self.length * self.dim
        params = sum(shape[0] * (shape[1:] or (1,))[0] for shape in self.shapes())
        moved = (4 if self.pass_ == "fwd_bwd" else 2) * rows + (1 if self.pass_ == "fwd" else 2) * params
        moments = 4 * params if self.pass_ == "train_step" and self.optimizer != "sgd" else 0
        angles = self.length * self.d if self.style == "llama" else 0
        return moved * ITEMSIZE[self.dtype] + (angles + moments) * 4

    def work(self) -> Work:
        """Return ``flops`` and ``bytes_min``, with the dtype of the products."""
        return Work(self.flops(), self.bytes_min(), self.computed, self.tf32)

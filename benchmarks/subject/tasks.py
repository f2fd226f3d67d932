"""Operations that the rule of tolerances was not made with: layers, losses, norms, attention, scans, indexing.

Each has honest variants and wrong ones of its own, besides those that ``tolerance`` makes of any operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """An operation with its inputs."""

    reference: Function
    inputs: Callable[[], tuple[Any, ...]]  # in float32, from torch's global generator
    honest: Mapping[str, Function] = field(default_factory=dict)
    wrong: Mapping[str, Function] = field(default_factory=dict)


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that draws tensors of ``shapes``."""
    return lambda: tuple(scale * torch.randn(shape) for shape in shapes)


def positive(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that draws tensors of ``shapes`` in [0.1, 1.1)."""
    return lambda: tuple(0.1 + torch.rand(shape) for shape in shapes)


def weighted(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that draws normal tensors, all but the first divided by the root of their last size."""
    return lambda: (torch.randn(shapes[0]), *(torch.randn(shape) / math.sqrt(shape[-1]) for shape in shapes[1:]))


# --- normalizations ---


def rms_norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    """X / rms(x) * w."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rms_norm_cast(x: Tensor, w: Tensor) -> Tensor:
    """The same as language models write it, in float32 inside."""
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer_norm_one_pass(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Layer normalization with the variance as E x^2 - (E x)^2."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) * torch.rsqrt(variance + 1e-5) * w.float() + b.float()).to(x.dtype)


def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalization of the last dimension."""
    return F.layer_norm(x, x.shape[-1:], w, b, eps)


def dyt(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Dynamic tanh, in place of a normalization."""
    return torch.tanh(0.7 * x) * w + b


# --- attention ---


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """Scaled dot-product attention, spelt out."""
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, -math.inf)
    return scores.softmax(-1) @ v


def online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in blocks of keys, with a running maximum, in float32 inside."""
    wide = [each.float() for each in (q, k, v)]
    total = torch.zeros_like(wide[0])
    top, weight = torch.full((*q.shape[:-1], 1), -math.inf), torch.zeros((*q.shape[:-1], 1))
    for keys, values in zip(wide[1].split(16, -2), wide[2].split(16, -2), strict=True):
        scores = wide[0] @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrink = torch.exp(scores - new), torch.exp(top - new)
        total, weight, top = total * shrink + weights @ values, weight * shrink + weights.sum(-1, keepdim=True), new
    return (total / weight).to(q.dtype)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with the feature map elu + 1."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2).unsqueeze(-1))


def rotary(x: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, time, size]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * 1e4 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with a bias that grows with the distance."""
    place = torch.arange(q.shape[-2])
    bias = -0.1 * (place[:, None] - place).abs()
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias.to(q.dtype)
    return scores.softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in which two heads share keys and values."""
    return attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


# --- scans and recurrences ---


def ema(x: Tensor) -> Tensor:
    """Exponential moving average over the last dimension."""
    state, states = x[:, 0], []
    for step in range(x.shape[1]):
        state = 0.9 * state + 0.1 * x[:, step]
        states.append(state)
    return torch.stack(states, 1)


def gated_scan(x: Tensor, gate: Tensor) -> Tensor:
    """H = sigmoid(g) h + x, written into a tensor."""
    out, state = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for step in range(x.shape[1]):
        state = torch.sigmoid(gate[:, step]) * state + x[:, step]
        out[:, step] = state
    return out


def gru(x: Tensor, h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """One gated recurrent cell, eight steps."""
    for _ in range(8):
        (r, z, n), (hr, hz, hn) = (x @ w.t()).chunk(3, -1), (h @ u.t()).chunk(3, -1)
        r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        h = (1 - z) * torch.tanh(n + r * hn) + z * h
    return h


def selective_scan(x: Tensor, delta: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """A state-space layer whose step depends on the input."""
    step = F.softplus(delta)
    state, outputs = torch.zeros_like(x[:, 0, :, None] * b[:, 0, None]), []
    for t in range(x.shape[1]):
        decay = torch.exp(-step[:, t, :, None])
        state = decay * state + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
        outputs.append((state * c[:, t, None]).sum(-1))
    return torch.stack(outputs, 1)


def power_iteration(a: Tensor, v: Tensor) -> Tensor:
    """Three steps towards the largest eigenvector of a a^T."""
    for _ in range(3):
        v = F.normalize(a @ (a.t() @ v), dim=0)
    return v


def adamw(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an optimizer."""
    mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad * grad
    return weight * 0.999 - 0.01 * mean / (square.sqrt() + 1e-5), mean, square


# --- layers ---


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The feed-forward layer of a language model."""
    return (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()


def mixture(x: Tensor, router: Tensor, experts: Tensor) -> Tensor:
    """Every token through its two best of four experts."""
    weight, chosen = (x @ router.t()).softmax(-1).topk(2, -1)
    results = torch.einsum("td,edf->tef", x, experts)
    picked = results.gather(1, chosen[..., None].expand(-1, -1, results.shape[-1]))
    return (picked * weight[..., None]).sum(1)


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A linear layer with an update of low rank."""
    return x @ w.t() + 0.5 * (x @ a.t()) @ b.t()


def residual_block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Convolution, normalization, activation, convolution, and the input."""
    return x + F.conv2d(F.relu(F.group_norm(F.conv2d(x, w, padding=1), 4)), v, padding=1)


def depthwise(x: Tensor, w: Tensor) -> Tensor:
    """A convolution of each channel by itself."""
    return F.conv2d(x, w, padding=1, groups=x.shape[1])


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Batch normalization with the statistics of the batch."""
    return F.batch_norm(x, None, None, w, b, training=True)


# --- losses ---


def cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of a classifier."""
    return F.cross_entropy(x, labels)


def label_smoothing(x: Tensor, labels: Tensor) -> Tensor:
    """The loss of each row, with smoothed labels."""
    return F.cross_entropy(x, labels, label_smoothing=0.1, reduction="none")


def focal(x: Tensor, labels: Tensor) -> Tensor:
    """The focal loss of each row."""
    log_p = x.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** 2) * log_p


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    """InfoNCE of two views."""
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return F.cross_entropy(a @ b.t() / 0.1, torch.arange(len(a)), reduction="none")


def kl(x: Tensor, y: Tensor) -> Tensor:
    """Kullback-Leibler divergence of each row."""
    return (y.softmax(-1) * (y.log_softmax(-1) - x.log_softmax(-1))).sum(-1)


def dice(x: Tensor, y: Tensor) -> Tensor:
    """Dice loss of each row."""
    p = torch.sigmoid(x)
    return 1 - (2 * (p * y).sum(-1) + 1) / (p.sum(-1) + y.sum(-1) + 1)


def grad_of(forward: Function) -> Function:
    """Return the function of the gradients of all floating point arguments."""

    def gradients(*args: Any) -> Any:
        args = tuple(a.detach().requires_grad_() if a.is_floating_point() else a for a in args)
        with torch.enable_grad():
            out = forward(*args)
            return torch.autograd.grad(out.sum(), [a for a in args if a.requires_grad])

    return gradients


def square_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A number of a layer normalization."""
    return layer_norm(x, w, b).square().sum() / 2


def unsafe_softmax(x: Tensor) -> Tensor:
    """Softmax without subtracting the maximum."""
    return x.exp() / x.exp().sum(-1, keepdim=True)


def exp2_softmax(x: Tensor) -> Tensor:
    """Softmax by powers of two, in float32 inside."""
    scaled = x.float() * math.log2(math.e)
    powers = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def erf_gelu(x: Tensor) -> Tensor:
    """GELU by its formula, in float32 inside."""
    wide = x.float()
    return (wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))).to(x.dtype)


def labelled(rows: int, classes: int) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that draws logits and labels."""
    return lambda: (2 * torch.randn(rows, classes), torch.randint(classes, (rows,)))


def pairwise(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances of all pairs."""
    return (x[:, None] - y[None]).square().sum(-1).sqrt()


def histogram(x: Tensor) -> Tensor:
    """Counts in 16 bins of equal width."""
    return torch.bincount(((x.clamp(-3, 2.99) + 3) / 6 * 16).long().clamp(max=15).reshape(-1), minlength=16)


def quantized(x: Tensor) -> Tensor:
    """Rounded to 8 bits with a scale for each row, and back."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127) * scale


X, ROW = (48, 256), (256,)
IMAGE, HEADS = (2, 8, 16, 16), (2, 4, 48, 32)
TASKS: dict[str, Task] = {
    "rms_norm": Task(rms_norm, normal(X, ROW), {"cast": rms_norm_cast}, {"no eps": lambda x, w: rms_norm(x, w, 0.0)}),
    "rms_norm, small": Task(
        rms_norm, lambda: (1e-3 * torch.randn(X), torch.ones(ROW)), {}, {"no eps": lambda x, w: rms_norm(x, w, 0.0)}
    ),
    "rms_norm, cast": Task(rms_norm_cast, normal(X, ROW)),
    "layer_norm": Task(
        layer_norm,
        normal(X, ROW, ROW),
        {"one pass": layer_norm_one_pass},
        {"no eps": lambda x, w, b: layer_norm(x, w, b, 0.0), "unbiased": lambda x, w, b: layer_norm(x, w, b) * 0.998},
    ),
    "group_norm": Task(lambda x: F.group_norm(x, 4), normal(IMAGE)),
    "instance_norm": Task(F.instance_norm, normal(IMAGE)),
    "batch_norm": Task(batch_norm, normal(IMAGE, (8,), (8,))),
    "l2_normalize": Task(lambda x: F.normalize(x, dim=-1), normal(X)),
    "standardize": Task(lambda x: (x - x.mean(0)) / x.std(0), normal(X)),
    "dyt": Task(dyt, normal(X, ROW, ROW)),
    "attention": Task(attention, normal(HEADS, HEADS, HEADS), {"online": online}),
    "attention, sdpa": Task(F.scaled_dot_product_attention, normal(HEADS, HEADS, HEADS), {"online": online}),
    "attention, causal": Task(
        lambda q, k, v: attention(q, k, v, causal=True),
        normal(HEADS, HEADS, HEADS),
        {"sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)},
        {"no mask": attention, "no scale": lambda q, k, v: attention(q, k, v, causal=True, scale=1.0)},
    ),
    "attention, in float32": Task(
        lambda q, k, v: attention(q.float(), k.float(), v.float()).to(q.dtype),
        normal(HEADS, HEADS, HEADS),
        {"sdpa": F.scaled_dot_product_attention, "of its type": attention, "online": online},
        {"no scale": lambda q, k, v: attention(q, k, v, scale=1.0)},
    ),
    "attention, linear": Task(linear_attention, normal(HEADS, HEADS, HEADS)),
    "attention, alibi": Task(alibi, normal(HEADS, HEADS, HEADS), {}, {"no bias": attention}),
    "attention, grouped": Task(grouped, normal(HEADS, (2, 2, 48, 32), (2, 2, 48, 32))),
    "rotary": Task(rotary, normal(HEADS)),
    "softmax": Task(
        lambda x: x.softmax(-1), normal(X, scale=2.0), {"exp2": exp2_softmax}, {"dim 0": lambda x: x.softmax(0)}
    ),
    "softmax, large": Task(
        lambda x: x.softmax(-1), normal(X, scale=100.0), {"exp2": exp2_softmax}, {"no max": unsafe_softmax}
    ),
    "log_softmax": Task(lambda x: x.log_softmax(-1), normal(X)),
    "logsumexp": Task(
        lambda x: x.logsumexp(-1), normal(X), {}, {"no max": lambda x: (10 * x).exp().sum(-1).log() / 10}
    ),
    "gelu": Task(F.gelu, normal(X), {"erf": erf_gelu}, {"tanh": lambda x: F.gelu(x, approximate="tanh")}),
    "silu": Task(F.silu, normal(X), {"formula": lambda x: (x.float() / (1 + (-x.float()).exp())).to(x.dtype)}),
    "mish": Task(F.mish, normal(X)),
    "softplus": Task(F.softplus, normal(X)),
    "tanh, saturated": Task(torch.tanh, normal(X, scale=3.0)),
    "hardswish": Task(F.hardswish, normal(X)),
    "logit": Task(lambda x: torch.log(x / (1 - x)), lambda: (0.01 + 0.98 * torch.rand(X),)),
    "polynomial": Task(lambda x: x**3 - 2 * x**2 + 0.5 * x - 1, normal(X)),
    "hypot": Task(lambda x, y: torch.sqrt(x * x + y * y), normal(X, X)),
    "matmul": Task(torch.matmul, normal((40, 300), (300, 24))),
    "matmul, batched": Task(torch.matmul, normal((3, 20, 100), (3, 100, 24))),
    "linear, bias": Task(F.linear, weighted((32, 128), (64, 128), (64,))),
    "linear, sigmoid": Task(lambda x, w: torch.sigmoid(x @ w.t()), weighted((32, 128), (64, 128))),
    "mlp": Task(lambda x, w, v: F.relu(x @ w.t()) @ v.t(), weighted((32, 128), (256, 128), (64, 256))),
    "swiglu": Task(swiglu, weighted((24, 64), (128, 64), (128, 64), (64, 128))),
    "swiglu, in float32": Task(
        lambda *args: swiglu(*(arg.float() for arg in args)).to(args[0].dtype),
        weighted((24, 64), (128, 64), (128, 64), (64, 128)),
        {"of its type": swiglu},
    ),
    "mixture": Task(mixture, weighted((24, 32), (4, 32), (4, 32, 16))),
    "lora": Task(lora, weighted((24, 96), (96, 96), (4, 96), (96, 4)), {}, {"no update": lambda x, w, a, b: x @ w.t()}),
    "outer": Task(torch.outer, normal((96,), (130,))),
    "einsum": Task(lambda a, b: torch.einsum("bij,bjk->bik", a, b), normal((2, 24, 64), (2, 64, 12))),
    "gram": Task(lambda x: x @ x.t() / x.shape[1], normal((48, 200))),
    "conv1d": Task(F.conv1d, weighted((2, 12, 100), (8, 12, 5))),
    "conv2d": Task(lambda x, w: F.conv2d(x, w, padding=1), weighted(IMAGE, (16, 8, 3, 3))),
    "conv2d, depthwise": Task(depthwise, weighted(IMAGE, (8, 1, 3, 3))),
    "conv, residual": Task(residual_block, weighted(IMAGE, (8, 8, 3, 3), (8, 8, 3, 3))),
    "avg_pool": Task(lambda x: F.avg_pool2d(x, 4), normal(IMAGE)),
    "max_pool": Task(lambda x: F.max_pool2d(x, 2), normal(IMAGE)),
    "upsample": Task(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(IMAGE)),
    "sum": Task(lambda x: x.sum(-1), positive((48, 1000))),
    "sum, signed": Task(lambda x: x.sum(0), normal((500, 40))),
    "mean": Task(lambda x: x.mean(), positive(X)),
    "var": Task(lambda x: x.var(-1), normal(X)),
    "std, shifted": Task(lambda x: x.std(-1), lambda: (1 + torch.randn(X),)),
    "norm": Task(lambda x: x.norm(dim=-1), normal(X)),
    "product": Task(lambda x: x.prod(-1), lambda: (0.9 + 0.2 * torch.rand(48, 40),)),
    "amax": Task(lambda x: x.amax(-1), normal(X)),
    "argmax": Task(lambda x: x.argmax(-1), normal(X)),
    "topk": Task(lambda x: x.topk(8, -1), normal(X)),
    "sort": Task(lambda x: x.sort(-1).values, normal(X)),
    "cumsum": Task(lambda x: x.cumsum(-1), normal(X)),
    "cumsum, positive": Task(lambda x: x.cumsum(-1), positive(X)),
    "cumprod": Task(lambda x: x.cumprod(-1), lambda: (0.95 + 0.1 * torch.rand(48, 64),)),
    "ema": Task(ema, normal((24, 64))),
    "gated scan": Task(gated_scan, normal((24, 48), (24, 48))),
    "gru": Task(gru, weighted((16, 32), (16, 32), (96, 32), (96, 32))),
    "cross_entropy": Task(cross_entropy, labelled(64, 200)),
    "cross_entropy, smoothed": Task(
        label_smoothing, labelled(64, 200), {}, {"not smoothed": lambda x, y: F.cross_entropy(x, y, reduction="none")}
    ),
    "focal loss": Task(focal, labelled(64, 50)),
    "contrastive loss": Task(contrastive, normal((48, 64), (48, 64))),
    "kl divergence": Task(kl, normal(X, X)),
    "dice loss": Task(dice, lambda: (torch.randn(X), torch.rand(X).round())),
    "huber loss": Task(lambda x, y: F.huber_loss(x, y), normal(X, X)),
    "mse of rows": Task(lambda x, y: (x - y).square().mean(-1), normal(X, X)),
    "cosine similarity": Task(lambda x, y: F.cosine_similarity(x, y, dim=-1), normal(X, X)),
    "embedding": Task(lambda i, w: F.embedding(i, w) * 8.0, lambda: (torch.randint(50, (64,)), torch.randn(50, 32))),
    "gather, scaled": Task(lambda x, i: x.gather(1, i) * 0.3, lambda: (torch.randn(X), torch.randint(256, (48, 20)))),
    "index_add": Task(
        lambda x, i: torch.zeros_like(x[:9]).index_add(0, i, x), lambda: (torch.randn(90, 64), torch.randint(9, (90,)))
    ),
    "segment mean": Task(
        lambda x: torch.stack([part.mean(0) for part in x.split([10, 30, 20, 40])]), normal((100, 64))
    ),
    "distances": Task(pairwise, normal((32, 24), (40, 24))),
    "histogram": Task(histogram, normal((20, 100))),
    "quantized": Task(quantized, normal(X)),
    "fft": Task(lambda x: torch.fft.rfft(x.float()).abs(), normal((16, 128))),
    "layer_norm, backward": Task(grad_of(square_sum), normal(X, ROW, ROW)),
    "softmax, backward": Task(grad_of(lambda x, y: (x.softmax(-1) * y).sum(-1)), normal(X, X)),
    "linear, backward": Task(grad_of(lambda x, w: F.gelu(x @ w.t()).square()), weighted((32, 96), (48, 96))),
    "conv2d, backward": Task(grad_of(lambda x, w: F.conv2d(x, w, padding=1).square()), weighted(IMAGE, (16, 8, 3, 3))),
    "copy, transposed": Task(lambda x: x.t() * 2, normal(X)),
    "conv_transpose2d": Task(lambda x, w: F.conv_transpose2d(x, w, stride=2), weighted(IMAGE, (8, 6, 3, 3))),
    "squeeze and excite": Task(
        lambda x, w, v: x * torch.sigmoid(F.relu(x.mean((2, 3)) @ w.t()) @ v.t())[:, :, None, None],
        weighted(IMAGE, (4, 8), (8, 4)),
    ),
    "bilinear": Task(
        lambda x, y, w: torch.einsum("bi,oij,bj->bo", x, w, y), weighted((24, 32), (24, 32), (10, 32, 32))
    ),
    "relu squared": Task(lambda x, w: F.relu(x @ w.t()).square(), weighted((32, 128), (64, 128))),
    "entropy": Task(lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), normal(X)),
    "triplet loss": Task(lambda a, p, n: F.relu((a - p).norm(dim=-1) - (a - n).norm(dim=-1) + 1), normal(X, X, X)),
    "logcumsumexp": Task(lambda x: x.logcumsumexp(-1), normal(X)),
    "weighted mean": Task(lambda x, w: (x * w).sum(-1) / w.sum(-1), lambda: (torch.randn(X), 0.1 + torch.rand(X))),
    "selective scan": Task(selective_scan, normal((4, 32, 16), (4, 32, 16), (4, 32, 8), (4, 32, 8))),
    "local response": Task(lambda x: F.local_response_norm(x, 3), normal(IMAGE)),
    "gaussian loss": Task(
        lambda x, y, v: 0.5 * ((x - y).square() / v + v.log()),
        lambda: (torch.randn(X), torch.randn(X), 0.1 + torch.rand(X)),
    ),
    "power iteration": Task(power_iteration, normal((32, 32), (32,))),
    "sigmoid loss": Task(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
        lambda: (3 * torch.randn(X), torch.rand(X).round()),
    ),
    "adamw": Task(adamw, lambda: (torch.randn(X), 0.1 * torch.randn(X), 0.1 * torch.randn(X), 0.01 * torch.rand(X))),
    "patches": Task(lambda x, w: F.unfold(x, 4, stride=4).transpose(1, 2) @ w, weighted(IMAGE, (128, 24))),
}

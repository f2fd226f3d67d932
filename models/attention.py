"""Scaled dot-product attention: y_i = sum_j p_ij v_j, with the weights p_i = softmax_j(q_i k_j / d^(1/2)) of query i.

Backward, from the gradient dy of y: dv_j = sum_i p_ij dy_i; ds_ij = p_ij (dy_i v_j - dy_i y_i);
dq_i = sum_j ds_ij k_j / d^(1/2); dk_j = sum_i ds_ij q_i / d^(1/2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from .layout import laid_out
from .passes import WithPasses
from .rounding import COMMON, DEVIATIONS, FLOOR, TF32, in_all, in_common
from .workload import ARITHMETIC, ITEMSIZE, TINY, UNIT, Draw, Expected, Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Attention(WithPasses):
    """y = attention of q [batch, heads, length, d] to k and v [batch, kv_heads, kv_length, d], and its gradients."""

    batch: Size
    heads: Size  # of queries
    kv_heads: Size  # of keys and values; each is read by heads / kv_heads heads of queries
    length: Size  # queries
    kv_length: Size  # keys and values
    d: Size  # numbers of a head
    causal: bool  # query i sees the keys up to i + kv_length - length: the last query sees all
    pass_: Literal["fwd", "bwd", "fwd_bwd"]  # y; dq, dk and dv without the forward; all four
    dtype: Literal["float32", "float16", "bfloat16"]
    layout: Literal["contiguous", "interleaved", "transposed", "strided", "offset"]  # of all inputs

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.causal and self.kv_length < self.length:
            raise ValueError(
                f"causal: the first of {self.length} queries would see none of {self.kv_length} keys; "
                "give kv_length of at least length"
            )

    def inputs(self, draw: Draw) -> tuple[Tensor, ...]:
        """Return q, k and v; with a backward also dy, of the shape of q."""
        queries = (self.batch, self.heads, self.length, self.d)
        keys = (self.batch, self.kv_heads, self.kv_length, self.d)
        shapes = (queries, keys, keys, queries)
        return tuple(draw(*shape) for shape in shapes[: 3 if self.pass_ == "fwd" else 4])

    def draw_inputs(self, device: str, seed: int) -> tuple[Tensor, ...]:
        """Return the input tensors on ``device``, drawn from ``seed``: the same numbers in every layout.

        In memory ``interleaved`` is [batch, length, heads, d], as a projection of a whole position gives it.
        """
        drawn = super().draw_inputs(device, seed)
        if self.layout == "interleaved":
            return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in drawn)
        return tuple(laid_out(tensor, self.layout) for tensor in drawn)

    def options(self) -> Mapping[str, object]:
        """Return whether a query sees the keys before it alone."""
        return {"causal": self.causal}

    def reference(self, *inputs: Tensor) -> tuple[Expected, ...]:
        """Return y for fwd, dq, dk and dv for bwd, and all four for fwd_bwd.

        They are computed in float64 in blocks of scores. The automatic tolerance (``runner.subject.tolerance``) needs
        all scores at once, ten times in float64, so it could not judge the long sequences for which fused kernels are
        made. This one is ``DEVIATIONS`` standard deviations of propagated roundings; see ``attention_errors``.
        """
        import torch

        last = torch.arange(self.kv_length - self.length, self.kv_length, device=inputs[0].device)
        return self.expected_of(*inputs, last=last if self.causal else None)

    def expected_of(self, *inputs: Tensor, last: Tensor | None) -> tuple[Expected, ...]:
        """Return what ``reference`` does, if query i sees the keys up to the index ``last[i]``; None: all."""
        from . import attention_errors as errors

        q, k, v, *dy = (tensor.double().flatten(0, 1) for tensor in inputs)
        given = errors.Operands(q, k, v, dy[0] if dy else None, last)
        tf32 = TF32 if self.tf32 and self.dtype == "float32" else 0.0
        arithmetic = ARITHMETIC[self.dtype] / 2
        rounding = errors.Rounding(UNIT[self.dtype] / 2, TINY[self.dtype] / 2, arithmetic, tf32)
        results, bias = errors.attention(given, rounding)
        names = {"fwd": ["y"], "bwd": ["dq", "dk", "dv"], "fwd_bwd": ["y", "dq", "dk", "dv"]}[self.pass_]
        like = {"y": inputs[0], "dq": inputs[0], "dk": inputs[1], "dv": inputs[1]}
        return tuple(self._expect(name, *results[name], bias, like[name]) for name in names)

    def _expect(self, name: str, value: Tensor, variance: Tensor, bias: float, like: Tensor) -> Expected:
        """Return what is right. Errors of one position may agree in all d numbers; those of several are independent.

        So a factor that all elements have in common is known much better than any of them. The rms of all errors tells
        factors in bfloat16 from those in TF32: the largest error of a factor counts as a deviation, so the rms is below
        0.75 of them.
        """
        rtol, deviation, reduced = UNIT[self.dtype], variance.sqrt_(), self.tf32 and self.dtype == "float32"
        truncated = 4 * TF32 if reduced else 0.0  # of one sign, in up to four factors: of dp and of ds k
        common = in_common(value, deviation, COMMON[self.dtype] * rtol + 4 * bias + truncated, dim=-1)
        return Expected(
            name=name,
            value=value.view(like.shape),
            atol=(DEVIATIONS * deviation + FLOOR[self.dtype]).view(like.shape),
            rtol=rtol,
            tolerance=f"{rtol:.1e} |r| + {DEVIATIONS:g} deviations of propagated roundings; {common:.1e} in common; "
            "reference in blocks",
            rms=in_all(0.75 / DEVIATIONS, value.numel()) if reduced else inf,
            common=common,
        )

    def flops(self) -> int:
        """2 d per product of a query and a key that it sees, and there are two such products forward, five backward.

        Backward computes the scores again, as fused kernels do; the softmax is left out.
        """
        unseen = self.length * (self.length - 1) // 2 if self.causal else 0
        pairs = self.batch * self.heads * (self.length * self.kv_length - unseen)
        return {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[self.pass_] * 2 * self.d * pairs

    def bytes_min(self) -> int:
        """Inputs, read once, and outputs, written once: q, k, v and y for fwd; backward also dy, dq, dk and dv.

        A backward alone reads y, which its forward has saved.
        """
        queries = self.batch * self.heads * self.length * self.d
        keys = self.batch * self.kv_heads * self.kv_length * self.d
        tensors = {"fwd": (2, 2), "bwd": (4, 4), "fwd_bwd": (4, 4)}[self.pass_]
        return (tensors[0] * queries + tensors[1] * keys) * ITEMSIZE[self.dtype]

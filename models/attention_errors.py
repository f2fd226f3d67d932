"""Attention and its gradients in float64 in blocks of scores, with the variance of the rounding errors of each element.

Errors are random and independent, so their variances add. A weight p_ij has a relative error e_ij: of the score, which
products in ``dtype`` round to it, of exp, and of its own storage. That of the sum of the row is common to all weights.
In the backward, delta_i = sum_j p_ij dp_ij has an error that the whole row shares; in dq_i its parts add up to it times
sum_j p_ij k_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

BLOCK = 2**23  # scores at once: about ten float64 matrices of so many, 64 MiB each


@dataclass(frozen=True)
class Rounding:
    """Errors of one operation, as standard deviations relative to its result unless said otherwise."""

    stored: float  # of rounding to the dtype of the tensors
    smallest: float  # of rounding what is near 0 to that dtype, absolute
    arithmetic: float  # of an operation on scores
    factor: float  # of a factor of a product, beyond its storage: of tf32

    def summed(self, terms: int) -> float:
        """Return the error of a sum of so many terms, relative to the root of the sum of their squares, and the sum.

        Partial sums are as large as that, and in the worst order each term rounds one.
        """
        return (2 + sqrt(terms) / 2) * self.arithmetic


@dataclass(frozen=True)
class Operands:
    """Operands in float64: q and dy [heads, length, d], k and v [kv_heads, kv_length, d]; heads are of all batches."""

    q: Tensor
    k: Tensor
    v: Tensor
    dy: Tensor | None
    last: Tensor | None  # index of the last key that each query sees, int64 [length]; None: all see all keys


Results = dict[str, tuple[Tensor, Tensor]]  # y, and with dy also dq, dk and dv: value and variance


def attention(given: Operands, rounding: Rounding) -> tuple[Results, float]:
    """Return each result with the variance of its error, and what errors of weights add to their mean.

    The latter is half of a variance, since a weight is a power: exp(e) is 1 + e + e^2 / 2.
    """
    names = ("y",) if given.dy is None else ("y", "dq", "dk", "dv")
    like = {"y": given.q, "dq": given.q, "dk": given.k, "dv": given.k}
    results = {name: (torch.zeros_like(like[name]), torch.zeros_like(like[name])) for name in names}
    (heads, length, _), kv_length = given.q.shape, given.k.shape[1]
    rows = min(length, max(1, BLOCK // kv_length))
    biases = list[Tensor]()
    together = max(1, BLOCK // (rows * kv_length)) if rows == length else 1
    for head in range(0, heads, together):
        for row in range(0, length, rows):
            block = slice(head, min(head + together, heads)), slice(row, min(row + rows, length))
            biases.append(_add(given, rounding, *block, results))
    group = heads // given.k.shape[0]
    of_sum = rounding.summed(length * group) ** 2 + (2 * rounding.stored**2 if group > 1 else 0.0)  # of each head
    for name in names[2:]:
        value, variance = results[name]
        variance += of_sum * value.square()
    return results, float(torch.stack(biases).max())


def _add(given: Operands, rounding: Rounding, heads: slice, rows: slice, results: Results) -> Tensor:
    """Add what these rows of these heads contribute. Return the mean error of weights."""
    group = given.q.shape[0] // given.k.shape[0]
    kv = torch.arange(heads.start, heads.stop, device=given.q.device) // group
    q, k, v = given.q[heads, rows], given.k[kv], given.v[kv]
    (_, length, d), kv_length = given.q.shape, k.shape[1]
    scale, u = 1 / sqrt(d), rounding
    last = torch.full_like(q[0, :, 0], kv_length, dtype=torch.int64) if given.last is None else given.last[rows]
    seen = torch.arange(kv_length, device=q.device) <= last[:, None]
    s = q @ k.mT * scale
    size = (q.square() @ k.square().mT) * scale**2  # sum of the squares of the terms of s
    largest = s.abs().masked_fill(~seen, 0).amax(-1, keepdim=True)
    of_score = (u.summed(d) ** 2 + 2 * u.factor**2) * (size + s.square()) + 2 * u.stored**2 * s.square()
    error = of_score.add_(2 * u.stored**2 + (2 * u.arithmetic) ** 2 * (1 + largest.square()))  # e_ij^2
    p = s.masked_fill_(~seen, -torch.inf).softmax(-1)
    square, bias = p.square(), (error * p).sum(-1).mean() / 2
    of_p = error.mul_(square).add_(u.smallest**2).masked_fill_(~seen, 0)  # variance of p_ij
    along, product = u.summed(kv_length), u.factor**2
    y = p @ v
    of_y = (of_p + (along**2 + product) * square) @ v.square() + y.square() * of_p.sum(-1, keepdim=True)
    of_y += along**2 * y.square()
    _put(results["y"], heads, rows, y, of_y)
    if given.dy is None:
        return bias
    dy = given.dy[heads, rows]
    across = u.summed(length * group)  # sums over queries
    dv = p.mT @ dy
    of_dv = (of_p + (across**2 + product + u.stored**2) * square).mT @ dy.square()
    results["dv"][0].index_add_(0, kv, dv)
    results["dv"][1].index_add_(0, kv, of_dv)
    dp = dy @ v.mT
    terms = dy.square() @ v.square().mT  # sum of the squares of the terms of dp; dy may be rounded once more
    of_dp = (u.summed(d) ** 2 + 2 * product + u.stored**2) * terms
    of_dp += (u.summed(d) ** 2 + 2 * product + 2 * u.stored**2) * dp.square()
    delta = (p * dp).sum(-1, keepdim=True)
    centred = dp - delta
    of_delta = (of_p * centred.square() + square * (2 * u.stored**2 * dp.square() + of_dp)).sum(-1, keepdim=True)
    of_delta += (u.stored * dy * y).square().sum(-1, keepdim=True)
    of_delta += along**2 * ((square * dp.square()).sum(-1, keepdim=True) + delta.square())
    ds = p * centred
    of_ds = of_p * centred.square() + square * (of_dp + 2 * u.stored**2 * delta.square())
    of_ds += 2 * u.stored**2 * ds.square() + u.smallest**2
    of_ds.masked_fill_(~seen, 0)
    dq = ds @ k
    of_dq = (of_ds + (along**2 + product) * ds.square()) @ k.square() + of_delta * (p @ k).square()
    of_dq += (along**2 + (2 * u.arithmetic) ** 2 * (1 + largest.square())) * dq.square()
    _put(results["dq"], heads, rows, dq * scale, of_dq * scale**2)
    dk = ds.mT @ q
    of_dk = (of_ds + square * of_delta + (across**2 + product) * ds.square()).mT @ q.square()
    results["dk"][0].index_add_(0, kv, dk * scale)
    results["dk"][1].index_add_(0, kv, of_dk * scale**2)
    return bias


def _put(into: tuple[Tensor, Tensor], heads: slice, rows: slice, value: Tensor, variance: Tensor) -> None:
    into[0][heads, rows], into[1][heads, rows] = value, variance

"""Numbers of a step of AdamW that no tensor changes, and the four lists of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from torch import Tensor

Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


class Factors(NamedTuple):
    """Factors of a step, in float64."""

    keep: float  # of p: the weight decay
    first: float  # of g, in m
    second: float  # of g^2, in v
    root: float  # v^(1/2) is divided by it
    rate: float  # of m / (v^(1/2) / root + eps)


def factors(step: int, lr: float, beta1: float, beta2: float, weight_decay: float) -> Factors:
    """Return the factors of ``step``, which counts from 1."""
    return Factors(1 - lr * weight_decay, 1 - beta1, 1 - beta2, sqrt(1 - beta2**step), lr / (1 - beta1**step))


def lists(tensors: Sequence[Tensor]) -> Lists:
    """Return the parameters, gradients, first and second moments among ``tensors``."""
    count, rest = divmod(len(tensors), 4)
    if rest:
        raise ValueError(f"{len(tensors)} tensors: give parameters, gradients, first and second moments, as many each")
    params, grads, firsts, seconds = (list(tensors[count * part : count * (part + 1)]) for part in range(4))
    return params, grads, firsts, seconds

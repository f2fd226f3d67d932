"""Judge some steps of a training one by one, each from the training's own parameters before it.

After many steps two right trainings are far apart: a rounding turns the sign of a number before a ReLU, or another
number of a window is the largest, and each step begins with the errors of the last one. A single step has limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from ..timing.call import Expected, Outputs
from ..timing.correctness import CheckResult, check_outputs
from .rounding import TF32
from .workload import UNIT, DType

RUNS, DEVIATIONS = 16, 4.0  # see ``Stepwise``
NOISE = 8.0  # roundings, in float32; of larger ones 4, which cut off enough
TIPPED, CAP = 1 / 16, 0.1  # share of the numbers of a tensor, and of its largest change: see ``Stepwise``
MANY = 256  # numbers of a tensor from which on they have a factor in common that is known better than each

Step = Callable[[int, bool, Sequence[Tensor]], Sequence[Tensor]]  # number, in float64?, parameters → those after it


def judged(steps: int) -> list[int]:
    """Return the numbers of the steps to judge: the first, one in the middle, and the last."""
    return sorted({0, steps // 2, steps - 1})


def kept(steps: int) -> list[int]:
    """Return the steps before which a training keeps its parameters, beside those before the first step."""
    return sorted({index for step in judged(steps) for index in (step, step + 1)} - {0, steps})


@dataclass(frozen=True)
class Stepwise(Outputs):
    """What the outputs of a training should be: its parameters after all steps, then those before each of ``kept``.

    ``step`` is run in float64, and ``RUNS`` times in ``dtype`` from parameters that differ by up to ``NOISE`` roundings
    to it. So these runs differ by more than roundings, and what a rounding may cut off is cut off in some of them. The
    change of a parameter may differ from the exact one by ``DEVIATIONS`` root mean squares, of its own and of its
    tensor, and by two roundings of the stored parameter. A factor that all changes of a large tensor have in common may
    differ from 1 by as many times the largest difference of a run, or by as much as independent errors at half of
    their limits would give: a ReLU that tips moves all numbers of a filter at once. Where the gradient is large, it
    moves them further than any of the runs did. So the share ``TIPPED`` of the numbers may exceed their limits, by up
    to ``CAP`` of the largest change.
    """

    step: Step
    start: Sequence[Tensor]  # parameters before the first step
    names: Sequence[str]
    steps: int
    dtype: DType  # in which a step is computed
    tf32: bool
    quick: bool = False  # leave out the step in the middle

    def check(self, outputs: Any, changed: object = None) -> CheckResult:
        """Compare the change of each parameter in each judged step with that of ``step``."""
        places = [self.steps, *kept(self.steps)]
        count = len(self.start)
        if len(outputs) != count * len(places):
            return CheckResult(compared=False, reason=f"{len(outputs)} tensors, not {count * len(places)}")
        kind = self.start[0].dtype
        shapes = [[one.shape for one in tensors] for tensors in (outputs, [*self.start] * len(places))]
        if shapes[0] != shapes[1] or any(one.dtype != kind for one in outputs):
            return CheckResult(compared=False, reason=f"not parameters of {kind} in the shapes before the training")
        states = {place: outputs[count * at : count * (at + 1)] for at, place in enumerate(places)} | {0: self.start}
        expected, changes = [], []
        for index in [0, self.steps - 1][: self.steps] if self.quick else judged(self.steps):
            before, after = states[index], states[index + 1]
            expected += self._expected(index, before)
            changes += [now.double() - was.double() for now, was in zip(after, before, strict=True)]
        return check_outputs(changes, expected, torch.float64)

    def _expected(self, index: int, before: Sequence[Tensor]) -> list[Expected]:
        exact = self.step(index, True, [param.double() for param in before])
        changes = [value - param.double() for value, param in zip(exact, before, strict=True)]
        squares, common = [torch.zeros_like(value) for value in exact], [0.0] * len(exact)
        generator = torch.Generator(before[0].device).manual_seed(index)
        exactly = self.dtype == "float32" and not self.tf32
        amount = NOISE * UNIT["float32"] if exactly else 4 * max(UNIT[self.dtype], TF32 / 2)
        for _ in range(RUNS):
            noise = [torch.empty_like(value).uniform_(-1, 1, generator=generator) for value in exact]
            near = [(param * (1 + amount * one)).to(param.dtype) for param, one in zip(before, noise, strict=True)]
            for at, (was, now) in enumerate(zip(near, self.step(index, False, near), strict=True)):
                error, change = now.double() - was.double() - changes[at], changes[at]
                squares[at] += error.square() / RUNS
                share = float((error * change).sum() / change.square().sum().clamp(min=1e-300))
                common[at] = max(common[at], abs(share))
        stored = 2 * UNIT[str(before[0].dtype).removeprefix("torch.")]
        text = f"of single steps, changes: {DEVIATIONS:g} deviations of {RUNS} runs + {stored:.1e} |parameter|"
        expected = []
        for name, change, value, square, factor in zip(self.names, changes, exact, squares, common, strict=True):
            limit = DEVIATIONS * (square.sqrt() + square.mean().sqrt()) + stored * value.abs()
            size = float(change.square().sum())
            together = sqrt(float(limit.square().mean()) / size) if size else inf
            known = DEVIATIONS * factor + together / 2 if change.numel() >= MANY else inf
            cap = CAP * float(change.abs().max()) + float(limit.max())
            change_of = f"change of {name} in step {index + 1}"
            expected.append(Expected(change_of, change, limit, 0.0, text, share=1 - TIPPED, cap=cap, common=known))
        return expected

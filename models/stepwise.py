"""Judge some steps of a training one by one, each from the training's own parameters before it.

After many steps two right trainings are far apart: a rounding turns the sign of a number before a ReLU, or another
number of a window is the largest, and each step begins with the errors of the last one. A single step has limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..timing.call import Expected
from ..timing.correctness import CheckResult, check_outputs
from .workload import UNIT, DType

RUNS, DEVIATIONS, NOISE = 8, 4.0, {"float32": 8.0}  # see ``Stepwise``; noise of other types is 2

Step = Callable[[int, bool, Sequence[Tensor]], Sequence[Tensor]]  # number, in float64?, parameters → those after it


def judged(steps: int) -> list[int]:
    """Return the numbers of the steps to judge: the first, one in the middle, and the last."""
    return sorted({0, steps // 2, steps - 1})


def kept(steps: int) -> list[int]:
    """Return the steps before which a training keeps its parameters, beside those before the first step."""
    return sorted({index for step in judged(steps) for index in (step, step + 1)} - {0, steps})


@dataclass(frozen=True)
class Stepwise:
    """What the outputs of a training should be: its parameters after all steps, then those before each of ``kept``.

    ``step`` is run in float64, and ``RUNS`` times in ``dtype`` from parameters that differ by up to ``NOISE`` roundings
    to it. So these runs differ by more than roundings, and what a rounding may cut off is cut off in some of them. The
    change of a parameter may differ from the exact one by ``DEVIATIONS`` root mean squares, of its own and of its
    tensor, and by two roundings of the stored parameter. A factor that all changes of a tensor have in common may
    differ from 1 by as many root mean squares.
    """

    step: Step
    start: Sequence[Tensor]  # parameters before the first step
    names: Sequence[str]
    steps: int
    dtype: DType  # in which a step is computed

    def check(self, outputs: Any) -> CheckResult:
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
        for index in judged(self.steps):
            before, after = states[index], states[index + 1]
            expected += self._expected(index, before)
            changes += [now.double() - was.double() for now, was in zip(after, before, strict=True)]
        return check_outputs(changes, expected, torch.float64)

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Compare as ``check`` does."""
        return self.check(outputs)

    def _expected(self, index: int, before: Sequence[Tensor]) -> list[Expected]:
        exact = self.step(index, True, [param.double() for param in before])
        changes = [value - param.double() for value, param in zip(exact, before, strict=True)]
        squares, common = [torch.zeros_like(value) for value in exact], [0.0] * len(exact)
        generator = torch.Generator(before[0].device).manual_seed(index)
        amount = NOISE.get(self.dtype, 2.0) * UNIT[self.dtype]
        for _ in range(RUNS):
            noise = [torch.empty_like(value).uniform_(-1, 1, generator=generator) for value in exact]
            near = [(param * (1 + amount * one)).to(param.dtype) for param, one in zip(before, noise, strict=True)]
            for at, (was, now) in enumerate(zip(near, self.step(index, False, near), strict=True)):
                error, change = now.double() - was.double() - changes[at], changes[at]
                squares[at] += error.square() / RUNS
                common[at] += float((error * change).sum() / change.square().sum()) ** 2 / RUNS
        stored = 2 * UNIT[str(before[0].dtype).removeprefix("torch.")]
        text = f"of single steps, changes: {DEVIATIONS:g} deviations of {RUNS} runs + {stored:.1e} |parameter|"
        return [
            Expected(
                f"change of {name} in step {index + 1}",
                change,
                DEVIATIONS * (square.sqrt() + square.mean().sqrt()) + stored * value.abs(),
                0.0,
                text,
                common=DEVIATIONS * sqrt(factor) + UNIT[self.dtype],
            )
            for name, change, value, square, factor in zip(self.names, changes, exact, squares, common, strict=True)
        ]

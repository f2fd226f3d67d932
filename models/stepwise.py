"""Judge some steps of a training one by one, each from the training's own parameters before it.

After many steps two right trainings are far apart: a rounding turns the sign of a number before a ReLU, or another
number of a window is the largest, and each step begins with the errors of the last one. A single step has limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..timing.call import Expected
from ..timing.correctness import CheckResult, check_outputs
from .rounding import FLOOR
from .workload import UNIT, DType

RUNS, NOISE, DEVIATIONS = 8, 8.0, 4.0  # see ``Stepwise``

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

    ``step`` is run in float64 and ``RUNS`` times in ``dtype``, each time from parameters that differ by up to ``NOISE``
    roundings. So these runs differ by more than roundings, and what a rounding may cut off is cut off in some of them.
    A change of a parameter may differ from the exact one by ``DEVIATIONS`` root mean squares, of its own and of its
    tensor, and by one rounding of the parameter.
    """

    step: Step
    start: Sequence[Tensor]  # parameters before the first step
    names: Sequence[str]
    steps: int
    dtype: DType

    def check(self, outputs: Any) -> CheckResult:
        """Compare the parameters after each judged step with those of ``step``."""
        places = [self.steps, *kept(self.steps)]
        count = len(self.start)
        if len(outputs) != count * len(places):
            return CheckResult(compared=False, reason=f"{len(outputs)} tensors, not {count * len(places)}")
        states = {place: outputs[count * at : count * (at + 1)] for at, place in enumerate(places)} | {0: self.start}
        expected = [one for index in judged(self.steps) for one in self._expected(index, states[index])]
        after = [tensor for index in judged(self.steps) for tensor in states[index + 1]]
        return check_outputs(after, expected, getattr(torch, self.dtype))

    def check_tensors(self, outputs: Sequence[object], paths: Sequence[str] = ()) -> CheckResult:
        """Compare as ``check`` does."""
        return self.check(outputs)

    def _expected(self, index: int, before: Sequence[Tensor]) -> list[Expected]:
        exact = self.step(index, True, [param.double() for param in before])
        changes = [value - param.double() for value, param in zip(exact, before, strict=True)]
        squares = [torch.zeros_like(value) for value in exact]
        generator = torch.Generator(before[0].device).manual_seed(index)
        unit = UNIT[self.dtype]
        for _ in range(RUNS):
            noise = [value.new_empty(value.shape).uniform_(-1, 1, generator=generator) for value in exact]
            near = [
                (param * (1 + NOISE * unit * one)).to(param.dtype) for param, one in zip(before, noise, strict=True)
            ]
            for square, was, now, change in zip(squares, near, self.step(index, False, near), changes, strict=True):
                square += (now.double() - was.double() - change).square() / RUNS
        tolerance = f"of a step from its own parameters: {unit:.1e} |r| + {DEVIATIONS:g} deviations of {RUNS} runs"
        return [
            Expected(
                f"{name} after step {index + 1}",
                value,
                DEVIATIONS * (square.sqrt() + square.mean().sqrt()) + FLOOR[self.dtype],
                unit,
                tolerance,
            )
            for name, value, square in zip(self.names, exact, squares, strict=True)
        ]

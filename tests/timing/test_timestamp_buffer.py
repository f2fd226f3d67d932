"""What is read from timestamps."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("times", "step"),
    [([0, 0, 32, 32, 96, 128], 32), ([7, 1031, 1031], 1024), ([5, 5, 5, 5], math.inf)],
    ids=["fine", "coarse", "never"],
)
def test_the_step_of_a_timer_is_the_least_that_it_was_seen_to_take(times, step):
    from runner.timing.timestamps import smallest_step

    assert smallest_step(torch.tensor(times)) == step

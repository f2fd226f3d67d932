"""draw_on: what inputs hold, and that a seed fixes it."""

from __future__ import annotations

import pytest
import torch

from runner.models.workload import draw_on


def test_one_seed_gives_the_same_tensors_in_the_same_order() -> None:
    first, again = (draw_on("cpu", "float32", "normal", seed=7) for _ in range(2))
    a, b = first(3, 5), first(3, 5)
    assert torch.equal(a, again(3, 5))
    assert torch.equal(b, again(3, 5))
    assert not torch.equal(a, b)


def test_another_seed_gives_other_tensors() -> None:
    assert not torch.equal(draw_on("cpu", "float32", "normal", 0)(9), draw_on("cpu", "float32", "normal", 1)(9))


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    draw_on("cpu", "float32", "normal", 0)(9)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_narrow_types_hold_the_float32_values_rounded(dtype: str) -> None:
    narrow = draw_on("cpu", dtype, "normal", 0)(100, 100)  # type: ignore[arg-type]
    wide = draw_on("cpu", "float32", "normal", 0)(100, 100)
    assert torch.equal(narrow, wide.to(getattr(torch, dtype)))


def test_float64_uses_all_of_its_bits() -> None:
    x = draw_on("cpu", "float64", "normal", 0)(1000)
    assert not torch.equal(x, x.float().double())


def test_normal_has_mean_0_and_the_scale_as_its_deviation() -> None:
    x = draw_on("cpu", "float64", "normal", 0)(1000, 1000, scale=3.0)
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 3) < 0.02


def test_uniform_fills_plus_minus_scale() -> None:
    x = draw_on("cpu", "float32", "uniform", 0)(100_000, scale=3.0)
    assert -3 <= x.min() < -2.99
    assert 2.99 < x.max() <= 3


def test_zeros_are_zero() -> None:
    assert not draw_on("cpu", "bfloat16", "zeros", 0)(4, 4).any()

"""Layouts change where numbers lie in memory, and nothing else."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from runner.models.layout import Layout, laid_out

STRIDES = {"contiguous": (15, 5, 1), "transposed": (15, 1, 3), "strided": (30, 10, 2), "offset": (15, 5, 1)}


@pytest.mark.parametrize("layout", get_args(Layout))
def test_strides_and_the_first_number_are_what_the_word_says(layout):
    tensor = torch.randn(2, 3, 5)
    laid = laid_out(tensor, layout)
    assert laid.stride() == STRIDES[layout]
    assert laid.storage_offset() == (layout == "offset")
    assert torch.equal(laid, tensor)


@pytest.mark.parametrize("layout", ["strided", "offset"])
def test_the_order_of_dimensions_in_memory_stays(layout):
    tensor = torch.randn(5, 3).t()  # as float8 b of matmul is drawn
    factor = 2 if layout == "strided" else 1
    assert laid_out(tensor, layout).stride() == (factor, 3 * factor)


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("tensor", [torch.tensor(2.0), torch.empty(0, 2), torch.arange(6).view(2, 3)])
def test_what_has_no_floating_numbers_to_arrange_stays(layout, tensor):
    assert laid_out(tensor, layout) is tensor


def test_a_vector_has_nothing_to_transpose():
    vector = torch.randn(4)
    assert laid_out(vector, "transposed") is vector
    assert [laid_out(vector, layout).stride() for layout in ("strided", "offset")] == [(2,), (1,)]


def test_an_expanded_tensor_is_laid_out_as_its_copy():
    tensor = torch.randn(3, 1).expand(3, 4)
    laid = laid_out(tensor, "strided")
    assert torch.equal(laid, tensor)
    assert laid.stride() == (8, 2)


@pytest.mark.parametrize("op", ["gelu", "softmax"])
def test_upstream_gradients_are_laid_out_too(make, op):
    _, (x, dy) = make(op, dtype="float32", rows=3, cols=5, pass_="bwd", layout="strided")
    assert x.stride() == dy.stride() == (10, 2)

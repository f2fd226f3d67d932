"""reduce_sum, reduce_max, argmax, norm: tolerances reject zeros, a constant, narrower arithmetic and a later tie."""

from __future__ import annotations

import pytest
import torch

DIMS = ("all", 0, 1)
SHAPE = {"rows": 150, "cols": 140}
TORCH = {
    "reduce_sum": lambda x, dim: x.sum((0, 1) if dim == "all" else dim),
    "reduce_max": lambda x, dim: x.amax((0, 1) if dim == "all" else dim),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=(0, 1) if dim == "all" else dim),
    "argmax": lambda x, dim: x.argmax(None if dim == "all" else dim),
}
NARROWER = {"float64": torch.float32, "float32": torch.bfloat16, "float16": torch.bfloat16}


@pytest.mark.parametrize("op", TORCH)
@pytest.mark.parametrize("dtype", [*NARROWER, "bfloat16"])
def test_torch_is_right_and_zeros_a_constant_and_a_narrower_type_are_wrong(make, error, op, dtype):
    for dim in DIMS:
        workload, (x,) = make(op, dtype=dtype, dim=dim, **SHAPE)
        expected, right = workload.reference(x), TORCH[op](x, dim)
        assert error(expected, [right]) <= 1
        assert error(expected, [torch.zeros_like(right)]) > 2
        if dim != "all":
            mean = right.double().mean()
            assert error(expected, [torch.full_like(right, int(mean) if op == "argmax" else float(mean))]) > 2
        if dtype in NARROWER and dim != "all" and op != "argmax" and (op, dtype) != ("reduce_max", "float16"):
            assert error(expected, [right.to(NARROWER[dtype]).to(right.dtype)]) > 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["reduce_sum", "norm"])
def test_a_sum_kept_in_16_bits_is_wrong(make, error, op, dtype):
    workload, (x,) = make(op, dtype=dtype, dim=0, rows=3000, cols=9)
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + (row * row if op == "norm" else row)
    assert error(workload.reference(x), [total.sqrt() if op == "norm" else total]) > 2


def test_a_sum_of_the_most_terms_in_one_accumulator_is_right(make, error):
    for op in ("reduce_sum", "norm"):
        workload, (x,) = make(op, dtype="float32", dim=0, rows=2**14, cols=50)
        total = (x.square() if op == "norm" else x).cumsum(0)[-1]  # one after the other
        assert error(workload.reference(x), [total.sqrt() if op == "norm" else total]) <= 1


@pytest.mark.parametrize("dim", DIMS)
def test_each_maximum_has_a_second_place_and_only_the_first_one_is_right(make, error, dim):
    workload, (x,) = make("argmax", dtype="float32", dim=dim, **SHAPE)
    along = x.flatten() if dim == "all" else x.movedim(dim, -1)
    ties = (along == along.amax(-1, keepdim=True)).sum(-1)
    assert float((ties == 2).double().mean()) > 0.9  # the others drew the same place twice
    last = along.shape[-1] - 1 - along.flip(-1).argmax(-1)
    assert workload.output_dtype == "int64"
    assert error(workload.reference(x), [last]) > 2


@pytest.mark.parametrize(
    ("op", "flops", "bytes_min"), [("reduce_sum", 12, 36), ("reduce_max", 12, 36), ("argmax", 12, 54), ("norm", 30, 36)]
)
def test_flops_and_bytes(make, op, flops, bytes_min):
    workload, _ = make(op, dtype="bfloat16", rows=3, cols=5, dim=1)
    assert (workload.flops(), workload.bytes_min()) == (flops, bytes_min)

"""The arguments of the Triton kernels: another block, other warps, the same result."""

from __future__ import annotations

import pytest
import torch

CALLS = {
    "add": ({}, [{"BLOCK": 32, "num_warps": 1}]),
    "gelu": ({"form": "tanh"}, [{"BLOCK": 64, "num_warps": 2}]),
    "softmax": ({}, [{"BLOCK": 32}, {"ROWS": 4, "num_warps": 2}, {"BLOCK": 128}]),
    "matmul": ({}, [{"BLOCK_M": 16, "num_warps": 2}, {"BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 2}]),
}
FLOAT64 = {
    "add": torch.add,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: x.softmax(-1),
    "matmul": torch.matmul,
}


@pytest.mark.parametrize(
    ("op", "place"), [(op, place) for op, (_, some) in CALLS.items() for place in range(len(some))]
)
def test_a_kernel_computes_the_same_whatever_its_arguments(load, device, op, place):
    options, some = CALLS[op]
    inputs = [torch.randn(40, 72, device=device) for _ in range(2 if op in ("add", "matmul") else 1)]
    if op == "matmul":
        inputs[1] = inputs[1].T
    y = load(op, "triton")(*inputs, **options, **some[place])
    assert torch.allclose(y.double(), FLOAT64[op](*(one.double() for one in inputs)), atol=1e-5)

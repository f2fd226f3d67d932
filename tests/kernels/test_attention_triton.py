"""Attention in Triton, forward and backward, against float64: drawn sizes, layouts, extremes, and bits that repeat."""

from __future__ import annotations

import random

import pytest
import torch

from runner.kernels.unsupported import Unsupported

FIELDS = {"batch": 1, "heads": 2, "kv_heads": 2, "length": 40, "kv_length": 40, "d": 32, "causal": True}
BOTH = {"pass_": "fwd_bwd"}
LAYOUTS = ["contiguous", "interleaved", "transposed", "strided", "offset"]


def drawn(number, longest):
    """Sizes that no block divides, other ones for each number."""
    draw = random.Random(number)
    kv_heads, keys, causal = draw.choice((1, 2, 3)), draw.randrange(1, longest), number % 2 == 0
    length = keys if number % 4 == 0 else draw.randrange(1, (keys if causal else longest) + 1)
    return {
        "batch": draw.choice((1, 2)),
        "heads": kv_heads * draw.choice((1, 2, 4)),
        "kv_heads": kv_heads,
        "length": length,
        "kv_length": keys,
        "d": draw.choice((16, 17, 31, 40, 64, 65, 80, 96, 120, 127, 128)),
        "causal": causal,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_drawn_sizes_are_right(make, error, load, device, dtype, number):
    function = load("attention", "triton")
    for layout in ("contiguous", LAYOUTS[number % 5]):
        workload, inputs = make("attention", dtype=dtype, device=device, layout=layout, **drawn(number, 900), **BOTH)
        assert error(workload.reference(*inputs), workload.call(function, inputs).run()) < 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_right(make, error, load, device, layout, dtype):
    function = load("attention", "triton")
    workload, inputs = make("attention", dtype=dtype, device=device, layout=layout, **FIELDS, **BOTH)
    assert error(workload.reference(*inputs), workload.call(function, inputs).run()) < 1


@pytest.mark.parametrize("factor", [1e-3, 30.0, -1e3])
def test_extremes_are_right(make, error, load, device, factor):
    """Equal scores; scores of which one outweighs all; and scores below any power that float32 can hold."""
    function = load("attention", "triton")
    workload, (q, k, v, dy) = make("attention", dtype="float32", device=device, **FIELDS, **BOTH)
    if factor < 0:
        q, k = torch.ones_like(q) * factor, torch.ones_like(k) + k / 1e3
    inputs = (q * factor if factor > 0 else q, k, v, dy)
    assert error(workload.reference(*inputs), workload.call(function, inputs).run()) < 1


def test_a_gradient_without_strides_of_its_own_is_read(load, device):
    function = load("attention", "triton")
    q, k, v = (torch.randn(1, 2, 20, 16, device=device, requires_grad=True) for _ in range(3))
    function(q, k, v).sum().backward()  # the gradient of y is a single 1
    expected = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))
    assert all(torch.allclose(x.grad, wanted, atol=1e-4) for x, wanted in zip((q, k, v), expected, strict=True))


def test_two_calls_give_the_same_bits(make, load, device):
    function = load("attention", "triton")
    workload, inputs = make("attention", dtype="float16", device=device, **(FIELDS | {"kv_heads": 1}), **BOTH)
    first, second = (workload.call(function, inputs).run() for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_operands_that_do_not_fit_are_refused(load, device):
    function = load("attention", "triton")
    x, longer, wide = (torch.zeros(1, 2, *shape, device=device) for shape in ((4, 16), (5, 16), (4, 256)))
    with pytest.raises(ValueError, match="5 queries and 4 keys"):
        function(longer, x, x, causal=True)
    with pytest.raises(ValueError, match="one batch and d"):
        function(x, x, longer)
    with pytest.raises(Unsupported, match="d up to 128; this is 256"):
        function(wide, wide, wide)
    with pytest.raises(Unsupported, match="takes float16, bfloat16 and float32; convert"):
        function(*(x.double() for _ in range(3)))


def test_a_backend_of_torch_says_why_it_refuses():
    from runner.kernels.attention.efficient import attention

    x = torch.zeros(1, 2, 4, 16)
    with pytest.raises(Unsupported, match="torch's backend efficient does not take these tensors here"):
        attention(x, x, x)

"""Attention in Triton, forward and backward, against float64: drawn sizes, layouts, extremes, and bits that repeat."""

from __future__ import annotations

import random

import pytest
import torch

from runner.kernels.unsupported import Unsupported

FIELDS = {"batch": 1, "heads": 2, "kv_heads": 2, "length": 40, "kv_length": 40, "d": 32, "causal": True}
LONGER = FIELDS | {"causal": False, "kv_length": 300}
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
    layout = LAYOUTS[number % 5]
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


@pytest.mark.parametrize("impl", ["naive", "torch", "triton"])
def test_a_first_block_of_keys_without_any_weight_is_no_nan(error, make, load, device, impl):
    """Finite operands whose first scores overflow to -inf in float32: those keys have a weight of 0."""
    function = load("attention", impl)
    workload, (q, k, v) = make(
        "attention", dtype="float32", device=device, **(FIELDS | {"causal": False, "kv_length": 300})
    )
    k[:, :, :260] = -k[:, :, :260].abs()
    q, k = q.abs() * 1e20, torch.cat([k[:, :, :260] * 1e20, k[:, :, 260:] / 1e20], 2)
    assert error(workload.reference(q, k, v), [function(q, k, v, causal=False)]) < 1


def test_online_skips_blocks_without_any_weight(error, make):
    from runner.kernels.attention.online import attention

    workload, (q, k, v) = make("attention", dtype="float32", **LONGER)
    k[:, :, :260] = -k[:, :, :260].abs()
    q, k = q.abs() * 1e20, torch.cat([k[:, :, :260] * 1e20, k[:, :, 260:] / 1e20], 2)
    assert error(workload.reference(q, k, v), [attention(q, k, v)]) < 1


def test_rows_that_lie_far_apart_are_read_and_written(load, device):
    """Row 127 begins beyond 2^31 elements."""
    function = load("attention", "triton")
    apart = 2**24 + 2**20
    block = torch.empty(127 * apart + 16, dtype=torch.float16, device=device)  # of which little is touched
    q = block.as_strided((1, 1, 128, 16), (0, 0, apart, 1)).normal_()
    k, v = (torch.randn(1, 1, 20, 16, dtype=torch.float16, device=device) for _ in range(2))
    assert torch.allclose(function(q, k, v), function(q.contiguous(), k, v), atol=1e-3)


@pytest.mark.parametrize("wanted", ["q", "kv", "v"])
def test_gradients_that_nobody_wants_are_left_out(load, device, wanted):
    function = load("attention", "triton")
    tensors = {name: torch.randn(1, 2, 20, 16, device=device, requires_grad=name in wanted) for name in "qkv"}
    function(*tensors.values()).sum().backward()
    expected = [tensor.detach().requires_grad_() for tensor in tensors.values()]
    torch.nn.functional.scaled_dot_product_attention(*expected).sum().backward()
    for (name, tensor), other in zip(tensors.items(), expected, strict=True):
        assert (tensor.grad is None) == (name not in wanted)
        assert tensor.grad is None or torch.allclose(tensor.grad, other.grad, atol=1e-4)


@pytest.mark.parametrize("block", [4, 48])
def test_a_block_that_tensor_cores_cannot_have_is_refused(load, device, block):
    function = load("attention", "triton")
    x = torch.zeros(1, 1, 64, 16, device=device)
    with pytest.raises(ValueError, match=f"BLOCK_N={block}: give powers of 2 of at least 16"):
        function(x, x, x, BLOCK_N=block)

"""Triton kernels on sizes and strides of about 2**31 elements, which 32 bits cannot count.

Memory that nothing touches costs nothing on a CPU, so the interpreter runs those of strides too.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

# Of three rows, the last begins at 2**31. Of two, 32 bits hold the stride in units of 16 bytes, but not in elements.
STRIDES = [2**30, 2**31]


def far(x, dim=0, stride=2**31):
    """Return a copy of ``x`` whose elements along ``dim`` are ``stride`` apart, and no others."""
    strides = list(x.select(dim, 0).clone(memory_format=torch.contiguous_format).stride())
    strides.insert(dim, stride)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def results(function, tensors, *, backward):
    tensors = [tensor.detach().requires_grad_(backward and tensor.is_floating_point()) for tensor in tensors]
    y = function(*tensors)
    given = [tensor for tensor in tensors if tensor.requires_grad]
    return [y, *(torch.autograd.grad(y.sum(), given) if given else ())]


def assert_alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-2, atol=1e-2)  # another layout may have another order of additions


@pytest.fixture
def of(load):
    """``of("softmax")``: the kernel with these options bound."""
    return lambda name, **options: partial(load(name, "triton"), **options)


def randn(*shape, device):
    return torch.randn(*shape, device=device, dtype=torch.float16)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Make 128 columns the longest row that a program of the norms holds, so that the interpreter has few to read."""
    from runner.kernels import row_norms

    monkeypatch.setattr(row_norms, "HELD", 128)
    monkeypatch.setattr(row_norms, "HELD_BACKWARD", dict.fromkeys((2, 4, 8), 128))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(
    ("name", "options", "cols"),
    [
        ("layernorm", {"eps": 1e-5}, 64),
        ("layernorm", {"eps": 1e-5}, 136),  # in steps, as ``short`` has it
        ("rmsnorm", {"eps": 1e-5}, 64),
        ("rmsnorm", {"eps": 1e-5}, 136),
        ("softmax", {}, 64),
        ("softmax", {}, 1001),  # with edges
        ("cross_entropy", {}, 64),
        ("cross_entropy", {}, 1001),
        ("cumsum", {}, 64),
        ("transpose", {}, 64),
        ("reduce_sum", {"dim": 1}, 64),
        ("reduce_sum", {"dim": 0}, 64),
        ("norm", {"dim": 1}, 20_001),
        ("argmax", {"dim": 1}, 64),
        ("matmul", {}, 64),
        ("cdist", {"p": 2}, 64),
        ("cdist", {"p": 2}, 3),  # from differences
        ("nearest", {}, 64),
        ("linear_int8", {"group": 0}, 64),
    ],
)
def test_rows_may_be_far_apart(of, device, name, options, cols, stride):
    rows = 2**31 // stride + 1
    x, w = randn(rows, cols, device=device), randn(cols, device=device)
    others = {
        "layernorm": [w, w],
        "rmsnorm": [w],
        "cross_entropy": [torch.arange(rows, device=device)],
        "matmul": [randn(cols, 8, device=device)],
        "cdist": [randn(5, cols, device=device)],
        "nearest": [randn(5, cols, device=device)],
        "linear_int8": [torch.ones(3, cols, dtype=torch.int8, device=device), randn(3, 1, device=device)],
    }.get(name, [])
    backward = name in ("layernorm", "rmsnorm", "softmax", "cross_entropy", "norm")
    found = results(of(name, **options), [far(x, 0, stride), *others], backward=backward)
    assert_alike(found, results(of(name, **options), [x, *others], backward=backward))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_heads_of_attention_may_be_far_apart(of, device, dim):
    q, k, v = (randn(3, 3, 3, 16, device=device) for _ in range(3))
    found = results(of("attention"), [far(q, dim, 2**30), k, v], backward=True)
    assert_alike(found, results(of("attention"), [q, k, v], backward=True))


@pytest.mark.parametrize("dim", [0, 2, 3])
def test_pixels_may_be_far_apart(of, device, dim):
    x, w = randn(3, 16, 3, 3, device=device), randn(4, 16, 3, 3, device=device)
    x, w = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, w))
    vectors = [randn(4, device=device).abs() for _ in range(4)]
    block = of("conv_bn_relu_pool", padding=1, pool=2)
    wanted = [block(x, w, *vectors)]
    assert_alike([block(_far_pixels(x, dim), w, *vectors)], wanted)
    assert_alike([block(x, _far_pixels(w, dim), *vectors)], wanted)


def _far_pixels(x, dim):
    """Return a copy of ``x`` with the channels of a pixel side by side, and ``dim`` 2**30 elements apart."""
    order = [d for d in (0, 2, 3, 1) if d != dim]
    return far(x.permute(dim, *order), 0, 2**30).permute([[dim, *order].index(d) for d in range(4)])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_a_histogram_of_just_below_2_to_the_31(of):
    x = torch.full((2**31 - 1,), 0.5, device="cuda")
    assert of("histogram", bins=2)(x).tolist() == [0, 2**31 - 1]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_a_column_of_just_below_2_to_the_31_is_transposed(of):
    x = torch.zeros(2**31 - 1, 1, dtype=torch.int8, device="cuda")
    x[-1] = 1
    y = of("transpose")(x)
    assert y[0, -1] == 1
    assert y.sum() == 1


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_distances_to_just_below_2_to_the_31_points(of):
    b = torch.zeros(2**31 - 1, 1, device="cuda")
    b[-1] = 3
    y = of("cdist", p=2)(torch.ones(1, 1, device="cuda"), b)
    assert y[0, [0, -2, -1]].tolist() == [1, 1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_logits_of_just_below_2_to_the_31_classes(of):
    x = torch.full((1, 2**31 - 1), -torch.inf, dtype=torch.float16, device="cuda")
    x[0, -2:] = 1
    loss, dx = results(of("cross_entropy"), [x, torch.tensor([2**31 - 2], device="cuda")], backward=True)
    assert abs(loss.item() - 0.6931) < 1e-3
    assert dx[0, -3:].tolist() == [0, 0.5, -0.5]


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("shape", [(2**31 - 1, 1), (1, 2**31 + 8)])
def test_a_norm_of_about_2_to_the_31_rows_or_columns(of, shape):
    x, w = (torch.ones(*size, dtype=torch.bfloat16, device="cuda") for size in (shape, shape[1:]))
    y, dx, dw = results(of("rmsnorm", eps=1e-5), [x, w], backward=True)
    assert (y == 1).all()
    assert dx[-1, -1].abs() < 1e-2
    assert ((dw / shape[0] - 1).abs() < 1e-2).all()

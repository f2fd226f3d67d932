"""mlp in Triton: its products tile by tile, what autograd asks of it, and what it refuses."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from runner.kernels.padding import room
from runner.kernels.side_stream import SideStream

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}


@pytest.fixture
def triton_mlp(load):
    load("mlp", "triton")  # or a skip
    return import_module("runner.kernels.mlp.triton")


@pytest.fixture
def narrow(device):
    """The type whose products are Triton's, on this device: the interpreter does not round bfloat16."""
    return torch.float16 if device == "cpu" else torch.bfloat16


def draw(device, dtype, batch, dim, layers):
    torch.manual_seed(0)
    params = []
    for _ in range(layers):
        params += torch.randn(dim, dim) * (2 / max(1, dim)) ** 0.5, torch.randn(dim) * 0.1
    return [tensor.to(device, dtype).requires_grad_() for tensor in (torch.randn(batch, dim), *params)]


def reference(x, *params, activation, kept=None):
    for layer, (w, b) in enumerate(zip(params[::2], params[1::2], strict=True)):
        z = F.linear(x, w, b)
        x = ACTIVATIONS[activation](z) if kept is None else z * kept[layer]
    return x


def kept_by_relu(function, tensors):
    """What relu lets through after each layer, by ``function``: rounding moves a z near 0 to its other side."""
    with torch.no_grad():
        return [function(*tensors[:end], activation="relu") > 0 for end in range(3, len(tensors) + 1, 2)]


def agree_in_narrow_type(function, tensors, activation):
    """Values and gradients agree with those in float64, where relu decides as ``function`` does."""
    dy = torch.randn_like(tensors[0].detach())
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    kept = kept_by_relu(function, tensors) if activation == "relu" else None
    want = gradients(partial(reference, kept=kept), wide, dy.double(), activation)
    agree(gradients(function, tensors, dy, activation), want, 16 * torch.finfo(dy.dtype).eps)


def gradients(function, tensors, dy, activation):
    y = function(*tensors, activation=activation)
    return [y, *torch.autograd.grad(y, tensors, dy)]


def agree(got, want, relative):
    for one, other in zip(got, want, strict=True):
        error, largest = (one.detach().double() - other.detach()).abs().max(), other.detach().abs().max()
        assert one.shape == other.shape
        assert float(error) <= relative * float(largest) + 1e-7


def tiling_named(name, device):
    products = import_module("runner.kernels.mlp._triton_products")
    tiling = getattr(products, name) if name.isalpha() else products.SMALLER[int(name)]
    if tiling.copy_engine and products.TensorDescriptor is None:
        pytest.skip("this Triton has no tensor descriptors")
    if tiling.copy_engine and device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not a Hopper GPU")
    return products, tiling


@pytest.mark.parametrize(
    ("tiling", "sizes"),
    [
        ("HOPPER", [(1, 8, 8), (130, 264, 72), (128, 128, 64), (131, 137, 99)]),
        ("POINTERS", [(1, 8, 8), (130, 264, 72), (128, 128, 64), (300, 136, 200)]),
        ("0", [(130, 137, 72)]),
        ("2", [(70, 137, 135)]),
        ("3", [(70, 66, 201)]),
        ("4", [(1, 7, 9), (65, 48, 131)]),
    ],
)
def test_products_and_their_epilogues_are_right_up_to_every_edge(triton_mlp, device, narrow, tiling, sizes):
    products, tiling = tiling_named(tiling, device)
    torch.manual_seed(0)
    eps = torch.finfo(narrow).eps
    for rows, cols, depth in sizes:
        shapes = (rows, depth), (cols, depth), (rows, cols), (rows, depth)
        drawn = [torch.randn(*shape, device=device).to(narrow) for shape in shapes]
        h, w, dz, kept = [products.aligned(x) for x in drawn] if tiling.copy_engine else drawn
        assert all(torch.equal(one, other) for one, other in zip((h, w, dz, kept), drawn, strict=True))
        b = torch.randn(cols, device=device).to(narrow)

        y, slope = torch.empty(rows, cols, device=device, dtype=narrow), room(rows, cols, h)
        products.linear(h, w, b, False, y, slope, tiling)
        z = (h.double() @ w.double().T + b.double()).requires_grad_()
        want = F.gelu(z)
        agree([y, slope], [want.detach(), *torch.autograd.grad(want.sum(), z)], eps)

        dh, sums = room(rows, depth, h), h.new_empty(-(-rows // tiling.m), depth, dtype=torch.float32)
        products.chained(dz, w, kept, False, dh, sums, tiling)
        want = (dz.double() @ w.double()) * kept.double()
        agree([dh, sums.sum(0)], [want, want.sum(0)], eps)
        agree(sums, [part.sum(0) for part in want.split(tiling.m)], 1e-5)


@pytest.mark.parametrize(
    ("rows", "dim", "descriptors", "want"),
    [
        (4096, 4096, True, "128x256"),
        (4095, 4093, True, "128x256"),  # any alignment
        (64, 1494, True, "64x32"),
        (32, 4096, True, "64x32"),
        (16, 1024, True, "64x32"),
        (16, 4096, True, None),  # few rows that all programs would read at the same time
        (256, 4096, True, "64x128"),
        (100, 1024, True, None),  # two bands, whose sums would have to be added up
        (100, 1023, True, "64x32"),
        (4096, 4096, False, "128x128"),
        (4096, 4095, False, None),  # cuBLAS, as for the next one, whose 32 tiles are few
        (64, 4096, False, None),
    ],
)
def test_tiles_keep_all_multiprocessors_busy(triton_mlp, rows, dim, descriptors, want):
    products = import_module("runner.kernels.mlp._triton_products")
    tiling = products._fastest(rows, dim, 132, descriptors)
    assert (tiling and f"{tiling.m}x{tiling.n}") == want
    assert tiling is None or tiling.copy_engine == descriptors


def test_it_says_what_multiplied(triton_mlp, device, monkeypatch):
    for dtype, want in ((torch.float32, "one kernel a layer"), (torch.float64, "cuBLAS")):
        triton_mlp.mlp(*draw(device, dtype, 3, 8, 1), activation="gelu")
        assert triton_mlp.chosen().startswith(want)
    monkeypatch.setattr(triton_mlp._triton_small, "WIDEST", 4)
    triton_mlp.mlp(*draw(device, torch.float32, 3, 8, 1), activation="gelu")
    assert triton_mlp.chosen().startswith("matmul: pointers")


@pytest.mark.parametrize("tiling", ["HOPPER", "POINTERS"])
def test_a_single_row_may_have_any_stride(triton_mlp, device, narrow, tiling):
    """torch calls it contiguous whatever its stride, and a tensor that is made like it has the same stride."""
    products, tiling = tiling_named(tiling, device)
    _, w, b = (tensor.detach() for tensor in draw(device, narrow, 1, 64, 1))
    x = torch.randn(4, 65, device=device).to(narrow)[:1, :64]
    assert x.is_contiguous()
    assert x.stride() == (65, 1)
    results = []
    for h in (x, x.flatten().view(1, 64)):
        y, slope, dh = torch.empty_like(h), torch.empty_like(h), torch.empty_like(h)
        sums = torch.empty(1, 64, device=device)
        products.linear(h, w, b, False, y, slope, tiling)
        products.chained(y, w, slope, False, dh, sums, tiling)
        results.append([y, slope, dh, sums])
    agree(*results, torch.finfo(narrow).eps)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "dim", "layers", "small"),
    [(1, 1, 1, 512), (129, 65, 2, 512), (7, 130, 3, 512), (5, 66, 2, 64), (129, 20, 2, 64)],
)
def test_every_gradient_agrees_with_autograds_own(
    triton_mlp, device, monkeypatch, activation, dtype, batch, dim, layers, small
):
    monkeypatch.setattr(triton_mlp._triton_small, "WIDEST", small)
    tensors = draw(device, dtype, batch, dim, layers)
    dy = torch.randn(batch, dim, device=device, dtype=dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    want = gradients(reference, wide, dy.double(), activation)
    agree(gradients(triton_mlp.mlp, tensors, dy, activation), want, 1e-12 if dtype == torch.float64 else 3e-5)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("tiling", [None, "POINTERS", "4"])
def test_every_gradient_of_a_narrow_type(triton_mlp, monkeypatch, device, narrow, activation, tiling):
    """By cuBLAS, by pointers, and by descriptors, whose rows are padded."""
    tiling = tiling and tiling_named(tiling, device)[1]
    monkeypatch.setattr(triton_mlp, "tiling_for", lambda _: tiling)
    for batch, dim, layers in ((70, 37, 3), (1, 9, 1)):
        agree_in_narrow_type(triton_mlp.mlp, draw(device, narrow, batch, dim, layers), activation)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize(("batch", "dim", "layers"), [(128 * 19, 2560, 2), (2048, 2304, 5)])
def test_gradients_of_weights_on_a_stream_of_their_own(activation, batch, dim, layers):
    module = import_module("runner.kernels.mlp.triton")
    assert batch * dim * dim >= module.LONG
    tensors = draw("cuda", torch.bfloat16, batch, dim, layers)
    agree_in_narrow_type(module.mlp, tensors, activation)


@pytest.mark.parametrize(
    "view",
    [lambda t: t.t(), lambda t: t[:1].expand(24, -1), lambda t: t.new_tensor(0.5).expand(24, 24)],
    ids=["transposed", "a row for all", "a number for all"],
)
@pytest.mark.parametrize("narrowed", [True, False])
def test_a_gradient_may_lie_in_any_way(triton_mlp, device, narrow, narrowed, view):
    dtype = narrow if narrowed else torch.float32
    tensors = draw(device, dtype, 24, 24, 2)
    dy = view(torch.randn(24, 24, device=device).to(dtype))
    one = gradients(triton_mlp.mlp, tensors, dy, "gelu")
    other = gradients(triton_mlp.mlp, tensors, dy.contiguous(), "gelu")
    agree(one, other, 16 * torch.finfo(dtype).eps)  # of other strides, the compiler may sum in another order


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("small", [512, 16])
def test_autocast_changes_nothing(triton_mlp, device, monkeypatch, activation, small):
    monkeypatch.setattr(triton_mlp._triton_small, "WIDEST", small)
    tensors = draw(device, torch.float32, 3, 24, 2)
    dy = torch.randn(3, 24, device=device)
    want = gradients(triton_mlp.mlp, tensors, dy, activation)
    with torch.autocast(device, dtype=torch.float16):
        got = gradients(triton_mlp.mlp, tensors, dy, activation)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_inputs_may_lie_in_any_way(triton_mlp, device, narrow):
    tensors = [tensor.detach() for tensor in draw(device, narrow, 24, 24, 2)]
    moved = [tensor.t().contiguous().t() if tensor.dim() == 2 else tensor[None].expand(3, -1)[1] for tensor in tensors]
    unaligned = [torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in tensors]
    want = triton_mlp.mlp(*tensors, activation="gelu")
    for others in (moved, unaligned):
        assert torch.allclose(triton_mlp.mlp(*others, activation="gelu"), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("narrowed", [True, False])
def test_nan_and_infinity_go_where_they_go_in_torch(triton_mlp, device, narrow, narrowed, activation):
    x, w, b = draw(device, narrow if narrowed else torch.float32, 6, 8, 1)
    dy = torch.ones_like(x)
    with torch.no_grad():
        x[1, 2], x[3, 2] = torch.nan, torch.inf
        dy[4, 5] = torch.nan
    naive = import_module("runner.kernels.mlp.naive").mlp  # torch of -inf is NaN or 0, as the machine has it
    got, want = (gradients(function, (x, w, b), dy, activation) for function in (triton_mlp.mlp, naive))
    assert torch.equal(got[0].isnan(), want[0].isnan())
    assert torch.equal(got[0].isinf(), want[0].isinf())
    assert torch.equal(got[1][4].isnan(), want[1][4].isnan())
    assert got[1][0].isfinite().all()


def test_a_batch_of_none_has_gradients_of_0(triton_mlp, device, narrow):
    for dtype in (narrow, torch.float32):
        tensors = draw(device, dtype, 0, 24, 2)
        y, dx, *rest = gradients(triton_mlp.mlp, tensors, torch.empty(0, 24, device=device, dtype=dtype), "gelu")
        assert y.shape == dx.shape == (0, 24)
        assert not any(gradient.any() for gradient in rest)


@pytest.mark.parametrize("batch", [0, 3])
def test_layers_of_no_width_have_gradients_of_none(triton_mlp, device, narrow, batch):
    for dtype in (narrow, torch.float32, torch.float64):
        tensors = draw(device, dtype, batch, 0, 2)
        y, *found = gradients(triton_mlp.mlp, tensors, torch.empty(batch, 0, device=device, dtype=dtype), "gelu")
        assert y.shape == (batch, 0)
        assert [gradient.shape for gradient in found] == [tensor.shape for tensor in tensors]


def test_no_gradient_of_x_is_computed_unless_asked_for(triton_mlp, device):
    x, *params = draw(device, torch.float32, 5, 8, 2)
    y = triton_mlp.mlp(x.detach(), *params, activation="gelu")
    y.sum().backward()
    assert all(param.grad is not None for param in params)
    with torch.no_grad():
        assert triton_mlp.mlp(x, *params, activation="gelu").grad_fn is None


def test_the_side_stream_is_joined_even_where_backward_fails(triton_mlp, monkeypatch, device):
    def full(*_, **__):
        raise torch.OutOfMemoryError

    joined = []
    y = triton_mlp.mlp(*draw(device, torch.float64, 5, 8, 2), activation="gelu")
    monkeypatch.setattr(torch, "mm", full)
    monkeypatch.setattr(SideStream, "join", lambda self: joined.append(True))
    with pytest.raises(torch.OutOfMemoryError):
        y.sum().backward()
    assert joined == [True]


def test_a_parameter_changed_before_its_backward_is_an_error_as_in_torch(triton_mlp, device):
    x, w, b = draw(device, torch.float32, 5, 8, 1)
    y = triton_mlp.mlp(x, w, b, activation="gelu")
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_parameters_that_do_not_fit_are_named(triton_mlp, device):
    x, w, b, *_ = draw(device, torch.float32, 5, 8, 2)
    with pytest.raises(ValueError, match=r"parameter 2 is \(8, 4\), which does not fit x of width 8"):
        triton_mlp.mlp(x, w, b, w[:, :4], b, activation="gelu")
    with pytest.raises(ValueError, match="activation 'silu': give gelu or relu"):
        triton_mlp.mlp(x, w, b, activation="silu")

"""Pairs of float16 for float32: what they hold, and the products and distances that are made of them.

Tensor cores are exact here: Triton's interpreter multiplies halves and adds in float32. What they cut off is for a GPU.
"""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")

from runner.kernels import fp16_split, tensor_cores  # noqa: E402
from runner.kernels.cdist.triton import Plan, cdist, launch, plan_for  # noqa: E402
from runner.kernels.matmul import split as by_halves  # noqa: E402
from runner.kernels.matmul.split import matmul  # noqa: E402
from runner.kernels.unsupported import Unsupported  # noqa: E402

# The interpreter's numpy says so when 1 / 0 is infinite and 0 * inf is NaN, which is what is wanted.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

INF = torch.inf
UNIT = 2.0**-24  # roundoff of float32
DEEP = 600 if os.environ.get("TRITON_INTERPRET") == "1" else 1500  # ten steps of a loop over coordinates, or 24


@pytest.fixture(autouse=True)
def _somewhere(device):
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("test_under_the_interpreter.py runs this one")


def wide(x, device, seed=0):
    """float32 of all sizes: each element times 2^-40 to 1, each row times 2^-60 to 2^60."""
    chance = torch.Generator().manual_seed(seed)
    sizes = -40 * torch.rand(x, generator=chance) + 120 * torch.rand(x[0], 1, generator=chance) - 60
    return (torch.randn(x, generator=chance) * torch.exp2(sizes)).to(device)


def whole(halves, rows, cols):
    """The matrix that halves by rows stand for, in float64."""
    hi, lo = halves.data[: halves.lo].double(), halves.data[halves.lo :].double()
    return (hi + lo)[:rows, :cols] * halves.scales.double()[:, None]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (130, 64), (7, 300), (2, 8200)])
@pytest.mark.parametrize("by", ["rows", "rows apart", "columns"])
def test_halves_hold_22_bits_of_large_elements_and_36_below_the_largest_of_small_ones(device, shape, by):
    if (by, shape) == ("columns", (2, 8200)):
        pytest.skip("a program takes 64 columns, whatever their number")
    x = wide(shape, device)
    if by == "columns":
        split = fp16_split.split_columns(x.mT)
        back = whole(fp16_split.Halves(split.data.mT.reshape(split.data.shape[1], 2, -1).permute(1, 0, 2).flatten(0, 1),
                                       split.data.shape[1], split.scales, split.norms), *shape)  # fmt: skip
    else:
        x = x if by == "rows" else torch.stack([x, x], 2).mT.reshape(shape[0], -1)[:, : shape[1]]
        split = fp16_split.split_rows(x, x)[1]
        back = whole(split, *shape)
    largest = x.double().abs().amax(1, keepdim=True)
    assert ((back - x.double()).abs() <= 2.0**-23 * x.double().abs() + 2.0**-36 * largest).all()
    assert ((largest[:, 0] / split.scales.double()).log2().floor() == 11).all()


@pytest.mark.parametrize("module", [by_halves, fp16_split])
def test_from_where_on_they_hold_22_bits_is_what_is_said(device, module):
    """The largest of the row is a power of two, which takes the least of what a float16 can hold."""
    bits = int(re.search(r"above 2\^-(\d+) of (?:A|the\s+largest)", module.__doc__)[1])
    above = 1 + torch.rand(10_000, device=device)  # to twice as much
    for scale, relative in ((2.0**-bits, True), (2.0 ** -(bits + 1), False)):
        x = torch.cat([torch.ones(1, device=device), above * scale])[None]
        error = (whole(fp16_split.split_rows(x, x[:0])[0], *x.shape) - x.double()).abs()
        assert (error <= 2.0**-36).all() or relative
        assert bool((error <= 2.0**-23 * x.double()).all()) == relative


def test_what_fills_up_the_tiles_is_zero(device):
    split = fp16_split.split_rows(torch.ones(3, 70, device=device), torch.ones(1, 70, device=device))[0]
    assert split.data.shape == (256, 128)
    assert not split.data[:3, 70:].any()
    columns = fp16_split.split_columns(torch.ones(70, 3, device=device))
    assert not columns.data[70 : columns.lo, :3].any()
    assert not columns.data[columns.lo + 70 :, :3].any()


@pytest.mark.parametrize("shape", [(4, 7), (9, 300), (2, 2048), (2, 8200)])
def test_norms_have_a_single_rounding(device, shape):
    x = wide(shape, device)
    split = fp16_split.split_points(x, x, depth=64, parts=2)[0]
    squares = whole(split, *shape).square()
    exact = squares.sum(1)
    # The interpreter rounds each square too, having no instruction that multiplies and adds.
    own = 2 * squares.square().sum(1).sqrt() if device == "cpu" else 0.001 * exact
    assert ((split.norms.double() - exact).abs() <= UNIT * (exact + own) + 2.0**-140).all()
    assert (exact > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hi_alone_holds_narrow_points(device, dtype):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("Triton's interpreter cuts bfloat16 off where a GPU rounds")
    x = torch.randn(33, 65, device=device).to(dtype)
    split = fp16_split.split_points(x, x, depth=64, parts=1)[0]
    assert split.data.shape == (split.lo, 128)
    assert torch.equal(split.data[:33, :65].double() * split.scales.double()[:, None], x.double())


@pytest.mark.parametrize("d", [3, 300])
def test_the_centre_takes_off_what_points_share_and_makes_no_sampled_point_longer(device, d):
    a = torch.randn(32, d, device=device) + 1000
    b = torch.randn(32, d, device=device) + 1000
    a[:, 0], b[:, 0] = 0.1, -0.1  # of two signs: stays
    a[:, 1], b[:, 1] = 1, 3  # more than a factor of two apart: stays
    first, second = fp16_split.split_points(a, b, depth=64, parts=2)
    assert ((whole(first, 32, 2) - a[:, :2].double()).abs() < 1e-6).all()
    assert (whole(first, 32, d)[:, 2:].abs() < 10).all()
    for x, split in ((a, first), (b, second)):
        assert (split.norms <= x.square().sum(1) * (1 + 1e-6)).all()
    moved = whole(first, 32, d)[:, None] - whole(second, 32, d)
    assert torch.allclose(moved, a.double()[:, None] - b.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bad", [INF, -INF, torch.nan, 3e38])
def test_no_centre_comes_of_infinities_and_nan(device, bad):
    a = torch.full((40, 3), 5.0, device=device)
    a[0] = bad
    a[1:, 0] = torch.randn(39, device=device)
    y = cdist(a, a[1:], p=2)
    assert y[1:].isfinite().all()
    assert torch.allclose(y[1:].double(), (a[1:, None].double() - a[1:].double()).square().sum(-1).sqrt(), atol=1e-2)


def points(kind, n, m, d, device):
    chance = torch.Generator().manual_seed(1)
    a, b = torch.randn(n, d, generator=chance), torch.randn(m, d, generator=chance)
    if kind == "offset":
        a, b = a + 1000, b + 1000
    if kind == "near":
        b = a[torch.arange(m) % n] + 1e-3 * b
    if kind == "same":
        b = a[torch.arange(m) % n].clone()
    if kind == "outliers":
        a[::10] *= 1e3
        b[5::10] *= 1e3
    if kind == "sizes":
        a, b = (
            a * torch.exp2(60 * torch.rand(n, 1, generator=chance) - 30),
            b * torch.exp2(torch.arange(m) % 60 - 30)[:, None],
        )
    return a.to(device), b.to(device)


KINDS = ["normal", "offset", "near", "same", "outliers", "sizes"]


def allowed(d, norms, exact):
    """The error of squared distances from points whose squared norms add up to ``norms``.

    As models/cdist.py has it for float32: the three terms, and sums of d squares; then the root and its rounding.
    Splitting rounds each coordinate to 2^-23 of itself and so moves a point by as much of its norm: a step of
    2^-23 (|a| + |b|) is one of 2^-22 y (|a| + |b|) in y^2. It shows where there are one or two coordinates only,
    not many whose steps go different ways.
    """
    return UNIT * ((4 + d**0.5 / 2) * norms + 4 * exact + 4 * (2 * norms * exact).sqrt())


def squares(a, b):
    a, b = a.double(), b.double()
    middle = a[:1] if (a.abs().min() > 100) else 0
    a, b = a - middle, b - middle
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.mT)).clamp(min=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "m", "d"), [(1, 1, 1), (70, 33, 3), (41, 261, 32), (100, 130, 64), (40, 33, 300), (5, 5, DEEP)]
)
def test_distances_have_the_error_of_their_centred_norms(device, kind, n, m, d):
    a, b = points(kind, n, m, d, device)
    y = cdist(a, b, p=2)
    middle = 1000 if kind == "offset" else 0
    norms = (a.double() - middle).square().sum(1)[:, None] + (b.double() - middle).square().sum(1)
    if kind == "offset":  # the centre is the middle of a span: up to some standard deviations from 1000
        norms = norms + 2 * 9 * d
    exact = squares(a, b)
    assert ((y.double().square() - exact).abs() <= allowed(d, norms, exact)).all()


PLANS = [
    plan_for(n, n, d, processors=132, descriptors=True, roles=False)
    for n, d in ((16384, 16), (16384, 64), (16384, 128), (16384, 2048), (64, 16), (64, 64), (64, 200))
]
PLANS.append(plan_for(16384, 16383, 100, processors=132, descriptors=True, roles=True))


@pytest.mark.skipif(tensor_cores.TensorDescriptor is None, reason="Triton before 3.4 has no descriptors")
@pytest.mark.parametrize("descriptor", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.rows}x{plan.cols}x{plan.depth}")
def test_every_plan_of_a_hopper_gpu(device, plan, parts, descriptor):
    """Stores by descriptor, as planned, or by pointer, where rows are not aligned; all fit: see the compiled ones."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not a Hopper GPU")
    d = 2 * plan.depth - 5
    a, b = torch.randn(70, d, device=device), torch.randn(140, d, device=device)
    if parts == 1:
        a, b = a.half(), b.half()
    y = torch.full((70, 140), torch.nan, dtype=a.dtype, device=device)
    halves = fp16_split.split_points(a, b, depth=plan.depth, parts=parts)
    store = plan.store if descriptor else 0
    launch(*halves, y, d, Plan(**vars(plan) | {"store": store}), descriptors=True)
    assert torch.allclose(y, torch.cdist(a.double(), b.double()).to(y.dtype), rtol=2e-3 if parts == 1 else 1e-5)


def test_infinities_nan_and_overflow(device):
    a = torch.randn(40, 7, device=device)
    b = torch.randn(50, 7, device=device)
    a[0, 3], a[1, 2], a[2, 1], a[3] = INF, -INF, torch.nan, 1e30
    b[4, 3], b[5, 0] = INF, torch.nan
    a[6] = b[6] = 0
    a[7], b[7] = 1e-30, -1e-30
    y = cdist(a, b, p=2)
    nan = torch.zeros(40, 50, dtype=torch.bool, device=device)
    nan[2], nan[:, 5] = True, True
    assert torch.equal(y.isnan(), nan)
    infinite = torch.zeros_like(nan)
    infinite[[0, 1, 3]], infinite[:, 4] = True, True
    assert torch.equal(y.isinf(), infinite & ~nan)
    assert y[6, 6] == 0
    assert y[7, 7] == 0
    assert torch.allclose(y[7, 6], torch.zeros_like(y[7, 6]), atol=1e-29)
    assert torch.allclose(y[7, 8:], b[8:].norm(dim=1), rtol=1e-6)


VIEWS = {
    "transposed": lambda x: x.mT,
    "every other": lambda x: x[:, ::2],
    "every other row": lambda x: x[::2],
    "unaligned": lambda x: x[1:, 3:],
    "expanded": lambda x: x[:1].expand(33, -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_distances_of_any_view_are_those_of_its_copy(device, view, dtype):
    x = view(torch.randn(40, 40, device=device).to(dtype))
    z = view(torch.randn(40, 40, device=device).to(dtype))
    assert torch.equal(cdist(x, z, p=2), cdist(x.contiguous(), z.contiguous(), p=2))


def test_rows_longer_than_a_program_holds(device):
    a, b = torch.randn(3, 8200, device=device) + 1000, torch.randn(2, 8200, device=device) + 1000
    exact = (a.double()[:, None] - b.double()).square().sum(-1)
    assert torch.allclose(cdist(a, b, p=2).double().square(), exact, rtol=1e-5)


@pytest.mark.parametrize(("n", "m", "d"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_no_points_and_no_coordinates(device, n, m, d):
    y = cdist(torch.ones(n, d, device=device), torch.ones(m, d, device=device), p=2)
    assert y.shape == (n, m)
    assert not y.any()


def test_what_has_no_distances_is_refused_before_anything_is_read(device):
    a = torch.ones(4, 5, device=device)
    for other, what in ((a[:, :3], "give one d"), (a[0], "give one d"), (a.double(), "give one dtype")):
        with pytest.raises(ValueError, match=what):
            cdist(a, other, p=2)
    with pytest.raises(ValueError, match="2 is the only norm"):
        cdist(a, a, p=1)


LAYOUTS = {"nn": (False, False), "tn": (True, False), "nt": (False, True), "tt": (True, True)}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (70, 33, 100), (130, 200, 64), (3, 5, 1001)])
def test_products_have_the_error_that_is_promised(device, m, n, k, layout):
    a, b = wide((m, k), device), wide((n, k), device, seed=1).mT
    a = a.mT.contiguous().mT if layout[0] else a
    b = b if layout[1] else b.contiguous()
    y = matmul(a, b).double()
    x, z = a.double(), b.double()
    terms = x.abs() @ z.abs()
    # A term, and a walk of float32 roundings; an element below 2^-13 of the largest of its row or column, as said.
    small = 2.0**-36 * (x.abs().amax(1, keepdim=True) * z.abs().sum(0) + x.abs().sum(1, keepdim=True) * z.abs().amax(0))
    below = 2.0**-149  # the least that float32 has: the products of rows of 2^-60 are a few of those, or none
    assert ((y - x @ z).abs() <= (2.0**-21 + 6 * k**0.5 * UNIT) * terms + small + below).all()


def test_products_do_not_lean_with_their_length(device):
    """Sums of positive terms: were they rounded towards zero at each step, the error would grow with k."""
    if device == "cpu":
        pytest.skip("tensor cores round towards zero, the interpreter does not")
    a, b = torch.rand(40, 4096, device=device), torch.rand(4096, 40, device=device)
    exact = a.double() @ b.double()
    assert ((matmul(a, b).double() - exact).abs() <= 16 * UNIT * exact).all()


def test_rows_and_columns_of_any_size_neither_overflow_nor_vanish(device):
    a, b = torch.randn(40, 50, device=device), torch.randn(50, 60, device=device)
    rows = torch.exp2(torch.linspace(-120, 120, 40, device=device).round())[:, None]
    cols = torch.exp2(torch.linspace(118, -118, 60, device=device).round())
    right = (a.double() * rows) @ (b.double() * cols)
    y = matmul(a * rows, b * cols)
    normal = (right.abs() > 1e-30) & (right.abs() < 3e38)
    error = 2.0**-21 * ((a.double().abs() * rows) @ (b.double().abs() * cols))
    assert ((y - right).abs() <= error)[normal].all()
    assert normal.sum() > 700
    assert y[right.abs() > 4e38].isinf().all()


def test_infinities_and_nan_are_as_in_torch(device):
    a, b = torch.randn(70, 90, device=device), torch.randn(90, 130, device=device)
    a[3, 4], a[5, 6], a[66, 1] = INF, torch.nan, -INF
    b[7, 9], b[8, 100] = -INF, torch.nan
    y, right = matmul(a, b), a @ b
    assert torch.allclose(y, right, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_products_of_any_view_are_those_of_its_copy(device, view):
    x, z = view(torch.randn(40, 40, device=device)), view(torch.randn(40, 40, device=device)).mT
    assert torch.allclose(matmul(x, z), matmul(x.contiguous(), z.contiguous()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_products(device, m, n, k):
    y = matmul(torch.ones(m, k, device=device), torch.ones(k, n, device=device))
    assert y.shape == (m, n)
    assert not y.any()


def test_products_of_other_types_say_what_would_help(device):
    x = torch.ones(2, 2, device=device, dtype=torch.float16)
    with pytest.raises(Unsupported, match=r"for float32, not torch\.float16; use impl=triton or impl=torch"):
        matmul(x, x)


def on_the_gpu(kind, n, d):
    """Points as in the table of the README: d coordinates, n of them in each set."""
    torch.manual_seed(1)
    a, b = torch.randn(n, d, device="cuda"), torch.randn(n, d, device="cuda")
    if kind == "offset":
        a, b = a + 1e3, b + 1e3
    if kind == "near":
        b = a[torch.randperm(n, device="cuda")] + 1e-3 * b
    if kind == "same":
        b = a.clone()
    if kind == "outliers":
        a[::100] *= 1e3
        b[50::100] *= 1e3
    return a, b


@pytest.mark.skipif(tensor_cores.TensorDescriptor is None, reason="Triton before 3.4 has no descriptors")
def test_warps_have_roles_where_gluon_has_what_they_need(monkeypatch):
    x = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for version, new in (("3.2.0", False), ("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True)):
        monkeypatch.setattr(triton, "__version__", version)
        assert tensor_cores.has_roles(x) == new
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not tensor_cores.has_roles(x)
    monkeypatch.delenv("TRITON_INTERPRET")
    for capability in ((8, 9), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert not tensor_cores.has_roles(x)
    assert not tensor_cores.has_roles(torch.ones(1))


@pytest.mark.parametrize(
    ("n", "m", "d", "kind"),
    [
        (16384, 16384, 64, "stay"), (8192, 8192, 128, "stay"), (8192, 8192, 257, "ring"), (2048, 2048, 2048, "ring"),
        (20000, 300, 64, "short"), (6789, 8749, 78, "short"), (8192, 8191, 2048, "short"), (1000, 1000, 64, "small"),
    ],
)  # fmt: skip
def test_who_takes_which_shape_on_a_hopper_gpu(n, m, d, kind):
    plan = plan_for(n, m, d, processors=132, descriptors=True, roles=True)
    tile = {(64, 64): "small", (64, 128): "short"}.get((plan.rows, plan.cols))
    assert kind == (tile if not plan.roles else "stay" if plan.resident else "ring")
    if plan.resident:
        assert triton.cdiv(d, plan.depth) in (1, 2)  # the parts that there are buffers for


ROLES = [  # tiles of 64 x 128, since rows of y are not aligned; stay: one part, two; ring
    *((1601, 1501, d) for d in (1, 3, 31, 32, 63, 65, 127, 128, 129, 300, 2047)),
    *((1601, 1504, d) for d in (1, 33, 64, 65, 128)),
    (17100, 1504, 60), (33901, 1501, 128),  # whole rows of tiles to each processor, and a rest
    (1, 20001, 64), (20001, 1, 64), (130, 20004, 100), (20000, 300, 64),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "m", "d"), ROLES)
def test_large_sets_have_the_error_of_their_norms(n, m, d):
    a, b = (torch.randn(rows, d, device="cuda") for rows in (n, m))
    y = cdist(a, b, p=2).double()
    exact = squares(a, b)
    norms = a.double().square().sum(1)[:, None] + b.double().square().sum(1)
    assert ((y.square() - exact).abs() <= allowed(d, norms, exact)).all()


@pytest.mark.gpu
def test_infinities_nan_and_overflow_in_large_sets():
    a, b = torch.randn(1601, 40, device="cuda"), torch.randn(1504, 40, device="cuda")
    a[0, 3], a[1, 2], a[2, 1], a[3] = INF, -INF, torch.nan, 1e30
    b[4, 3], b[5, 0] = INF, torch.nan
    a[6] = b[6] = 0
    y = cdist(a, b, p=2)
    nan = torch.zeros(1601, 1504, dtype=torch.bool, device="cuda")
    nan[2], nan[:, 5] = True, True
    infinite = torch.zeros_like(nan)
    infinite[[0, 1, 3]], infinite[:, 4] = True, True
    assert torch.equal(y.isnan(), nan)
    assert torch.equal(y.isinf(), infinite & ~nan)
    assert y[6, 6] == 0
    assert torch.allclose(y[7:, 7:].double(), squares(a[7:], b[7:]).sqrt(), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(1601, 1501, 130), (1601, 1504, 20), (20001, 1, 65), (1, 20001, 65)])
def test_large_products_have_the_error_that_is_promised(m, n, k, layout):
    test_products_have_the_error_that_is_promised("cuda", m, n, k, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [64, 128, 512])
def test_repeated_calls_two_streams_and_a_graph_agree_to_the_bit(d):
    pairs = [[torch.randn(2048, d, device="cuda") for _ in range(2)] for _ in range(2)]
    right = [cdist(a, b, p=2) for a, b in pairs]
    assert all(torch.equal(cdist(*pairs[0], p=2), right[0]) for _ in range(200))
    streams = [torch.cuda.Stream() for _ in pairs]
    for _ in range(20):
        torch.cuda.synchronize()
        made = []
        for stream, (a, b) in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                made.append([cdist(a, b, p=2) for _ in range(3)])
        torch.cuda.synchronize()
        assert all(torch.equal(y, right[i]) for i in range(2) for y in made[i])
    a, b = (x.clone() for x in pairs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = cdist(a, b, p=2)
    for i in (1, 0, 1):
        a.copy_(pairs[i][0])
        b.copy_(pairs[i][1])
        graph.replay()
        assert torch.equal(y, right[i])


@pytest.mark.gpu
def test_repeated_products_agree_to_the_bit():
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    right = matmul(a, b)
    assert all(torch.equal(matmul(a, b), right) for _ in range(200))


SHARES = [(2048, 2048, 1.0), (8192, 2048, 1.0), (16384, 64, 1.5), (8192, 128, 1.0)]  # of the error of torch.cdist


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "d", "share", "kind"),
    [(*size, kind) for size in SHARES for kind in KINDS[:-1]],
)
def test_squared_distances_err_no_more_than_torch_cdist_does(kind, n, d, share):
    torch.set_float32_matmul_precision("highest")
    a, b = on_the_gpu(kind, n, d)
    exact = squares(a, b)
    ours, theirs = (
        max(float((y[i : i + 1024].double().square() - exact[i : i + 1024]).abs().max()) for i in range(0, n, 1024))
        for y in (cdist(a, b, p=2), torch.cdist(a, b))
    )
    assert ours <= share * theirs


@pytest.mark.gpu
@pytest.mark.parametrize("signs", ["both", "one"])
def test_products_err_less_than_those_of_cublas(signs):
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(1)
    a, b = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    if signs == "one":
        a, b = a.abs(), b.abs()
    exact, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ours, theirs = (float(((y - exact).abs() / terms).max()) for y in (matmul(a, b), a @ b))
    assert ours <= theirs


@pytest.mark.gpu
def test_more_than_2_to_the_31_distances_and_products():
    a, b = torch.randn(46400, 5, device="cuda"), torch.randn(46400, 5, device="cuda")
    y = cdist(a, b, p=2)
    assert torch.allclose(y[-3:], torch.cdist(a[-3:], b), rtol=1e-4, atol=1e-3)
    del y
    y = matmul(a, b.mT)
    assert torch.allclose(y[-3:], a[-3:] @ b.mT, rtol=1e-4, atol=1e-4)

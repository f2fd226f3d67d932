"""matmul: every file of kernels/matmul at odd shapes, at any strides, with infinities, and in float8."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from runner.kernels.matmul import torch as by_torch
from runner.kernels.unsupported import Unsupported

KERNELS = Path(__file__).parents[2] / "kernels" / "matmul"
IMPLS = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(params=IMPLS)
def impl(request):
    return request.param


@pytest.fixture
def matmul(impl, load):
    return load("matmul", impl)


def multiplied(matmul, a, b, **scales):
    """The product, or a skip where this implementation says that it has none."""
    try:
        return matmul(a, b, **scales)
    except Unsupported as reason:
        pytest.skip(str(reason))


def test_known_values(matmul, device):
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=device)
    b = torch.tensor([[1.0, -1.0], [0.5, 2.0]], device=device)
    assert multiplied(matmul, a, b).tolist() == [[2, 3], [5, 5], [8, 7]]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 264), (300, 1, 264), (264, 300, 1), (16, 200, 520), (130, 257, 95)])
def test_a_row_a_column_and_one_term(matmul, device, make, error, dtype, m, n, k):
    workload, (a, b) = make("matmul", dtype=dtype, device=device, size=1, m=m, n=n, k=k)
    assert error(workload.reference(a, b), [multiplied(matmul, a, b)]) < 1


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)])
def test_nothing_gives_nothing_and_no_terms_give_zeros(matmul, device, m, n, k):
    y = multiplied(matmul, torch.ones(m, k, device=device), torch.ones(k, n, device=device))
    assert y.shape == (m, n)
    assert not y.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, ::2],
        lambda x: x[::2],
        lambda x: x[1:, 1:],
        lambda x: x[:1].expand(144, -1),
        lambda x: x[:, :1].expand(-1, 144),
        lambda x: x.flip(0),
    ],
    ids=["transposed", "every other col", "every other row", "unaligned", "one row", "one column", "flipped"],
)
def test_any_view_gives_what_its_copy_gives(matmul, device, dtype, view):
    x = torch.randn(144, 144, device=device).to(dtype)
    left, right = view(x), view(x.flip(1))
    other = torch.randn(144, 144, device=device).to(dtype)
    rtol = 4 * torch.finfo(dtype).eps
    for a, b in ((left, other[: left.shape[1]]), (other[:, : right.shape[0]], right)):
        copies = a.clone(memory_format=torch.contiguous_format), b.clone(memory_format=torch.contiguous_format)
        y, of_copies = multiplied(matmul, a, b), multiplied(matmul, *copies)
        assert torch.allclose(y, of_copies, rtol=rtol, atol=100 * torch.finfo(torch.float32).eps)


def test_infinities_and_nans_stay_in_their_rows_and_columns(matmul, impl, device):
    if impl == "split":
        pytest.skip("a factor that is cut in two says for itself what it does with infinities")
    a, b = torch.randn(70, 130, device=device), torch.randn(130, 90, device=device)
    a[3, 5], b[7, 11], a[4] = torch.inf, torch.nan, 0
    y = multiplied(matmul, a, b)
    assert y[3, torch.arange(90) != 11].isinf().all()
    assert y[:, 11].isnan().all()
    rest = y[torch.arange(70) != 3][:, torch.arange(90) != 11]
    assert rest.isfinite().all()
    assert not rest[3].any()


@pytest.mark.parametrize("impl", ["triton", "split", "cuda"], indirect=True)
def test_what_makes_no_product_is_refused_before_anything_is_read(matmul, device):
    a, b = torch.ones(4, 5, device=device), torch.ones(5, 3, device=device)
    for other in (b[:3], b[0], b.double()):
        with pytest.raises(ValueError, match="give"):
            matmul(a, other)


def test_the_inputs_are_left_as_they_were(matmul, device):
    a, b = torch.randn(33, 65, device=device), torch.randn(65, 17, device=device)
    before = a.clone(), b.clone()
    multiplied(matmul, a, b)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 64), (32, 48, 4096), (1, 144, 256), (160, 272, 4096)])
@pytest.mark.parametrize("along_k", [True, False])
def test_float8_is_multiplied_as_stored_and_gives_bfloat16(matmul, impl, device, make, error, m, n, k, along_k):
    if (impl, device, m) == ("torch", "cpu", 160):
        pytest.skip("torch takes 10 s for it on a CPU")
    workload, (a, b) = make("matmul", dtype="float8_e4m3fn", device=device, size=1, m=m, n=n, k=k)
    assert b.stride() == (1, k)
    y = multiplied(matmul, a, b if along_k else b.contiguous())
    assert y.dtype == torch.bfloat16
    assert error(workload.reference(a, b), [y]) < 1


def test_scales_of_float8_are_those_of_its_factors(matmul, impl, device):
    if impl in ("split", "cuda"):
        pytest.skip("takes float32")
    a = torch.randn(32, 64, device=device).to(FLOAT8)
    b = torch.randn(48, 64, device=device).to(FLOAT8).t()
    plain = multiplied(matmul, a, b)
    two, quarter = torch.tensor(2.0, device=device), torch.tensor(0.25, device=device)
    assert torch.equal(matmul(a, b, scale_a=two, scale_b=quarter), plain / 2)  # powers of two round nothing
    assert torch.equal(matmul(a, b, scale_a=two), plain * 2)
    assert torch.equal(matmul(a, b, scale_b=quarter), plain / 4)


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "cut out": lambda x: torch.cat([x.float(), x.float()[:, :8]], 1).to(FLOAT8)[:, : x.shape[1]],
    "not aligned": lambda x: torch.cat([x.float().new_zeros(1), x.float().flatten()]).to(FLOAT8)[1:].view(x.shape),
    "one row": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("impl", ["torch", "triton", "naive"], indirect=True)
@pytest.mark.parametrize("view", LAYOUTS.values(), ids=LAYOUTS)
def test_float8_of_any_layout_is_multiplied(matmul, device, view):
    a, b = torch.randn(32, 64, device=device).to(FLOAT8), torch.randn(48, 64, device=device).to(FLOAT8)
    left, right = view(a), view(b).t()
    y = multiplied(matmul, left, right).double()
    want = left.double() @ right.double()
    assert torch.allclose(y, want, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("view", LAYOUTS.values(), ids=LAYOUTS)
def test_cublas_is_given_float8_in_rows_along_k(view):
    """The layout depends on strides alone, so tensors of a CPU do."""
    x = torch.randn(32, 64).to(FLOAT8)
    assert by_torch.rows_along_k(x) is x
    assert by_torch.rows_along_k(x[4:]).data_ptr() == x[4:].data_ptr()  # not copied
    given = by_torch.rows_along_k(view(x))
    assert given.stride() == (64, 1)
    assert given.storage_offset() == 0
    assert torch.equal(given.float(), view(x).float())


@pytest.fixture
def fresh():
    """The module of torch's matmul, loaded once more: no scale has been made in it yet."""
    spec = importlib.util.spec_from_file_location(f"{by_torch.__name__}_fresh", by_torch.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fake_first", [True, False])
def test_a_scale_of_one_is_data_whoever_asked_first(fresh, fake_first):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.randn(32, 64).to(FLOAT8), torch.randn(48, 64).to(FLOAT8).t()
    if not fake_first:
        multiplied(fresh.matmul, a, b)
    with FakeTensorMode():
        fresh.scale_of_one(torch.empty(32, 64, dtype=FLOAT8))
    assert multiplied(fresh.matmul, a, b).isfinite().all()
    assert fresh.scale_of_one(a) is fresh.scale_of_one(b)
    assert fresh.scale_of_one(a).item() == 1
    assert type(fresh.scale_of_one(a)) is torch.Tensor


@pytest.mark.gpu
def test_a_scale_of_one_is_one_on_any_stream_and_in_any_graph(fresh):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("cuBLAS has no float8 here")
    a = torch.ones(32, 64, device="cuda").to(FLOAT8)
    b = torch.ones(48, 64, device="cuda").to(FLOAT8).t()
    one = torch.ones((), device="cuda")  # both the same: a scale that is not aligned to 16 bytes is refused
    torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)  # cuBLAS is there
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = fresh.matmul(a, b)
    y = fresh.matmul(a, b)
    torch.cuda.synchronize()
    torch.cuda._sleep(10**7)  # the current stream is busy, and another one is not
    with torch.cuda.stream(side):
        other = fresh.matmul(a, b)
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 64).all()
    assert (other == 64).all()
    assert (captured == 64).all()

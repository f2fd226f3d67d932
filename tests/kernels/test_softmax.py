"""softmax: every file of kernels/softmax on rows that overflow, hold infinities, or lie apart in memory."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

KERNELS = Path(__file__).parents[2] / "kernels" / "softmax"
IMPLS = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))
COLS = [5, 1000, 33_000]  # several rows a program | one | a loop over the row
INF = torch.inf


@pytest.fixture(params=IMPLS)
def impl(request):
    return request.param


@pytest.fixture
def softmax(impl, load):
    return load("softmax", impl)


@pytest.mark.parametrize("cols", COLS)
def test_rows_sum_to_1_and_ignore_a_shift(softmax, device, cols):
    x = torch.randn(3, cols, device=device, dtype=torch.float64)
    y = softmax(x)
    assert torch.allclose(y.sum(-1), torch.ones(3, device=device, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(y, softmax(x + 1000), rtol=1e-10)


@pytest.mark.parametrize("cols", COLS)
def test_logits_of_ten_thousands_stay_right(softmax, device, cols, make, error):
    workload, (x,) = make("softmax", dtype="float32", device=device, rows=3, cols=cols)
    x = x * 1e4
    assert error(workload.reference(x), [softmax(x)]) < 1


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("cols", [3000, 4096, 12_000, 16_384, 20_001])  # read once, twice and three times by Triton
def test_rows_of_thousands_match_float64(softmax, device, make, error, dtype, cols):
    workload, (x,) = make("softmax", dtype=dtype, device=device, rows=3, cols=cols)
    assert error(workload.reference(x), [softmax(x)]) < 1


@pytest.mark.parametrize("cols", COLS)
def test_a_constant_row_is_uniform(softmax, device, cols):
    y = softmax(torch.full((2, cols), 1e4, device=device))
    assert torch.allclose(y, torch.full_like(y, 1 / cols), rtol=1e-5)


@pytest.mark.parametrize("cols", COLS)
def test_infinities_are_as_in_torch(softmax, device, cols):
    x = torch.randn(5, cols, device=device)
    x[0] = -INF
    x[1, 3] = INF
    x[2, 3] = torch.nan
    x[3, 1:] = -INF  # leaves one weight of 1
    y = softmax(x)
    assert y[:3].isnan().all()
    assert y[3, 0] == 1
    assert not y[3, 1:].any()
    assert y[4].isfinite().all()


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 1:],
        lambda x: x[::2],
        lambda x: x[:, ::2],
        lambda x: x.t().contiguous().t(),
        lambda x: x[:1].expand(4, -1),
        lambda x: x.view(2, 2, -1),
        lambda x: x[0],
        lambda x: x[:0],
    ],
    ids=["unaligned", "every other row", "every other col", "transposed", "expanded", "3-d", "1-d", "empty"],
)
def test_any_view_gives_what_its_copy_gives(softmax, device, cols, view):
    x = view(torch.randn(4, cols, device=device))
    y = softmax(x)
    assert y.shape == x.shape
    assert torch.allclose(y, softmax(x.clone(memory_format=torch.contiguous_format)), rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [262_144, 1_000_003])
def test_rows_of_a_million_columns(make, error, cols):
    workload, (x,) = make("softmax", dtype="float32", device="cuda", rows=70, cols=cols)
    assert error(workload.reference(x), [import_module("kernels.softmax.triton").softmax(x)]) < 1

"""matmul where warps have roles: tiles cut off at every edge, each layout, and the same bits every time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from runner.kernels.matmul.triton import chosen, matmul
from runner.kernels.tensor_cores import has_roles

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def hopper():
    if not has_roles(torch.empty(1, device="cuda")):
        pytest.skip("the kernel is for Hopper, and Triton 3.6 or newer")


def laid(make, dtype, m, n, k, a_along_k, b_along_k):
    """A product and its operands, each along k in memory or across it."""
    workload, (a, b) = make("matmul", dtype=dtype, device="cuda", size=1, m=m, n=n, k=k)
    return workload, a if a_along_k else a.t().contiguous().t(), b.t().contiguous().t() if b_along_k else b


# As many tiles as multiprocessors and a few more | several turns, and k no multiple of a step | eight steps | the
# fewest, four | rows of y that are not aligned | tiles of 128 columns, also with few steps and such rows
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (2968, 1544, 1024),
        (4096, 5128, 1104),
        (5000, 6008, 512),
        (3000, 3008, 200),
        (4100, 5123, 1104),
        (1900, 2040, 1024),
        (2176, 2000, 320),
        (1900, 2043, 1024),
    ],
)
@pytest.mark.parametrize(("a_along_k", "b_along_k"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_element_is_right_and_stays_so(make, error, dtype, m, n, k, a_along_k, b_along_k):
    workload, a, b = laid(make, dtype, m, n, k, a_along_k, b_along_k)
    first = matmul(a, b)
    assert chosen().startswith("roles")
    assert error(workload.reference(a, b), [first]) < 1
    assert all(torch.equal(first, matmul(a, b)) for _ in range(20))


# Half a wave, in two parts | most of a wave, whose second parts go to the programs that are left | a few tiles after
# three waves, in four parts | odd rows of y | rows of b that are copied, since each lies in two lines of L2
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1984, 960, 8192), (2688, 832, 13824), (6528, 1984, 4096), (1984, 1001, 10240), (3000, 1544, 8192)],
)
@pytest.mark.parametrize(("a_along_k", "b_along_k"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_programs_share_a_wave_with_the_same_sums_every_time(make, error, dtype, m, n, k, a_along_k, b_along_k):
    workload, a, b = laid(make, dtype, m, n, k, a_along_k, b_along_k)
    first = matmul(a, b)
    assert "last wave shared" in chosen()
    assert ("b copied" in chosen()) == (n % 64 > 0 and not b_along_k)
    assert error(workload.reference(a, b), [first]) < 1
    assert all(torch.equal(first, matmul(a, b)) for _ in range(100))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = matmul(a, b)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:  # beside each other, and beside the graph
        stream.wait_stream(torch.cuda.current_stream())
    found = []
    for _ in range(10):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(matmul(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(first, one) for one in [captured, *found])


@pytest.mark.parametrize(("m", "n", "k", "shared"), [(3000, 2568, 2064, False), (1984, 960, 16384, True)])
def test_float8_is_scaled(make, error, m, n, k, shared):
    workload, a, b = laid(make, "float8_e4m3fn", m, n, k, a_along_k=True, b_along_k=True)
    product = matmul(a, b)
    assert chosen().startswith("roles")
    assert ("last wave shared" in chosen()) == shared
    assert error(workload.reference(a, b), [product]) < 1
    two, quarter = (torch.tensor(x, device="cuda") for x in (2.0, 0.25))
    assert torch.equal(matmul(a, b, scale_a=two, scale_b=quarter), product / 2)


@pytest.mark.parametrize(("m", "n", "k"), [(256, 4096, 1024), (4096, 4096, 128)])
def test_what_it_is_not_for_is_left_to_the_others(make, error, m, n, k):
    workload, (a, b) = make("matmul", dtype="bfloat16", device="cuda", size=1, m=m, n=n, k=k)
    assert error(workload.reference(a, b), [matmul(a, b)]) < 1
    assert not chosen().startswith("roles")


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_y_may_begin_anywhere(make, error, offset):
    workload, (a, b) = make("matmul", dtype="bfloat16", device="cuda", size=1, m=4096, n=4096, k=1024)
    y = torch.empty(4096 * 4096 + 8, dtype=torch.bfloat16, device="cuda")[offset:][: 4096 * 4096].view(4096, 4096)
    assert error(workload.reference(a, b), [matmul(a, b, out=y)]) < 1
    assert chosen().startswith("roles")


def test_an_operand_that_descriptors_cannot_read_is_copied(make, error):
    workload, (a, b) = make("matmul", dtype="bfloat16", device="cuda", size=1, m=4096, n=4096, k=1023)
    assert error(workload.reference(a, b), [matmul(a, b)]) < 1
    assert chosen().startswith("roles")
    assert chosen().endswith("a copied")

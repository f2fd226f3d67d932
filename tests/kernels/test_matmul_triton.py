"""matmul in Triton: each kernel, layout and way of storing by itself, whatever the choice by size would be."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from runner.kernels import padding
from runner.kernels.matmul import triton
from runner.kernels.matmul._configurations import Configuration
from runner.kernels.matmul._operands import crossed, readable
from runner.kernels.tensor_cores import TensorDescriptor
from runner.kernels.unsupported import Unsupported

WAVE = Configuration("descriptors", 64, 64, 32, stages=2, warps=4, group_m=2)
LARGE_WAVE = Configuration("descriptors", 128, 128, 64, stages=2, warps=4, group_m=2)
SKINNY = Configuration("skinny", 16, 64, 64, stages=2, warps=4)
POINTERS = Configuration("pointers", 32, 64, 32, stages=2, warps=4, group_m=3)


@pytest.fixture
def device(device):
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("test_under_the_interpreter.py runs this one")
    if device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("descriptors are used on Hopper")
    if TensorDescriptor is None:
        pytest.skip("this Triton has no descriptors")
    return device


@pytest.fixture
def product(device, make, error):
    """``product(how, m, n, k)``: the error of a @ b as a multiple of what is allowed."""

    def run(how, m, n, k, dtype="float16", a_along_k=True, b_along_k=False, begins=0):
        workload, (a, b) = make("matmul", dtype=dtype, device=device, size=1, m=m, n=n, k=k)
        a, b = a if a_along_k else a.t().contiguous().t(), b.t().contiguous().t() if b_along_k else b
        room = torch.full((begins + m * n,), torch.nan, dtype=getattr(torch, workload.output_dtype), device=device)
        y = room[begins:].view(m, n)
        triton.launch(triton.affordable(how, a, b), a, b, y)
        assert room[:begins].isnan().all()
        return error(workload.reference(a, b), [y])

    return run


@pytest.mark.parametrize("a_along_k", [True, False])
@pytest.mark.parametrize("b_along_k", [True, False])
@pytest.mark.parametrize("how", [WAVE, POINTERS], ids=str)
def test_either_operand_may_lie_either_way(product, how, a_along_k, b_along_k):
    assert product(how, 136, 200, 72, a_along_k=a_along_k, b_along_k=b_along_k) < 1
    assert triton.chosen() == str(how)


@pytest.mark.parametrize(("lined", "copied"), [((True, False), "a copied"), ((True, True), "a copied, b copied")])
def test_operands_may_be_copied_for_rows_that_begin_at_lines_of_the_cache(product, lined, copied):
    assert product(replace(WAVE, lined=lined), 136, 200, 72, a_along_k=False) < 1
    assert triton.chosen().endswith(copied)


def test_copies_for_lines_of_the_cache_begin_there(device):
    a, b = torch.randn(40, 136, device=device).half(), torch.randn(40, 200, device=device).half()
    for x, operand in zip((a.t(), b.t()), readable(a.t(), b.t(), False, (True, True)), strict=True):
        assert operand.strides[0] * 2 % 128 == operand.base.data_ptr() % 16 == 0
        assert torch.equal(operand.base, x.t())


def test_rows_across_k_lie_in_two_lines_unless_they_are_copied():
    room = torch.empty(2**17, dtype=torch.float16)
    room = room[-room.data_ptr() % 128 // 2 :]  # begins at a line

    def across(apart, begin=0):
        return room.as_strided((64, 512), (1, apart), room.storage_offset() + begin)

    assert crossed(across(72), along_k=False)
    assert crossed(across(192, begin=8), along_k=False)  # rows of 384 bytes that begin 16 bytes after a line
    assert not crossed(across(64), along_k=False)  # of 128 bytes
    assert not crossed(across(72).t(), along_k=False)  # they run along k
    # A descriptor cannot read these: rows of 146 bytes, or that begin 2 bytes after a line, or along k where it must.
    assert not any(crossed(x, along_k=False) for x in (across(73), across(192, begin=1)))
    assert not crossed(across(72), along_k=True)


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize(("m", "n"), [(1, 200), (16, 136), (136, 8)])
def test_few_rows_or_columns_lie_either_way(product, along_k, m, n):
    assert product(SKINNY, m, n, 200, a_along_k=along_k, b_along_k=along_k) < 1
    assert "skinny" in triton.chosen()


@pytest.mark.parametrize("split", [1, 3, 5])
@pytest.mark.parametrize("how", [WAVE, SKINNY, POINTERS], ids=str)
def test_a_sum_in_parts_is_the_sum(product, how, split):
    how = replace(how, split_k=split)
    assert product(how, 16, 136, 328) < 1
    assert product(how, 10, 200, 328) < 1


@pytest.mark.parametrize("n", [128, 200, 136])
def test_a_tile_stored_in_pieces_is_the_tile(product, n):
    assert product(replace(WAVE, block_n=128, pieces=2), 100, n, 64) < 1


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("along_k", [(True, True), (False, False)])
@pytest.mark.parametrize("n", [96, 200, 136, 131])
def test_columns_of_a_tile_may_be_three_times_a_power_of_two(product, along_k, n, split):
    how = replace(WAVE, block_n=96, pieces=3, split_k=split)
    a_along_k, b_along_k = along_k
    assert product(how, 104, n, 200, a_along_k=a_along_k, b_along_k=b_along_k) < 1


@pytest.mark.parametrize(("m", "n", "k"), [(65, 131, 33), (128, 65, 64), (33, 64, 33)])
def test_operands_that_descriptors_cannot_read_go_to_the_general_kernel(product, m, n, k):
    assert product(WAVE, m, n, k) < 1
    assert triton.chosen().startswith("pointers")


@pytest.mark.parametrize(("m", "n", "k"), [(133, 129, 65), (128, 131, 64), (128, 128, 67)])
def test_operands_that_descriptors_cannot_read_are_copied_for_a_large_product(product, monkeypatch, m, n, k):
    monkeypatch.setattr(triton, "copy_pays", lambda *sizes, **costs: True)
    assert product(LARGE_WAVE, m, n, k) < 1
    assert triton.chosen().startswith("descriptors")
    assert triton.chosen().count("copied") == (k % 8 != 0) + (n % 8 != 0)


@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 96), (33, 70, 100), (1, 70, 100), (33, 1, 1)])
def test_the_general_kernel_is_right_with_indices_of_64_bits(product, monkeypatch, m, n, k):
    monkeypatch.setattr(triton, "LONGEST", 0)
    assert product(POINTERS, m, n, k) < 1


@pytest.mark.parametrize("a_along_k", [True, False])
@pytest.mark.parametrize("b_along_k", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(40, 72, 104), (33, 70, 100), (35, 67, 99), (1, 67, 256)])
def test_the_general_kernel_loads_any_alignment(product, m, n, k, a_along_k, b_along_k):
    assert product(POINTERS, m, n, k, a_along_k=a_along_k, b_along_k=b_along_k) < 1


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("a_along_k", [True, False])
@pytest.mark.parametrize("b_along_k", [True, False])
def test_three_products_of_tf32_are_as_accurate_as_float32(device, split, a_along_k, b_along_k):
    a, b = torch.randn(40, 200, device=device), torch.randn(200, 67, device=device)
    left, right = a if a_along_k else a.t().contiguous().t(), b.t().contiguous().t() if b_along_k else b
    y = torch.full((40, 67), torch.nan, device=device)
    triton.launch(replace(POINTERS, split_k=split), left, right, y, precision="tf32x3")
    assert triton.chosen().endswith("tf32x3")
    exact = a.double() @ b.double()
    scale = a.abs().double() @ b.abs().double()
    assert ((y - exact).abs() / scale).max() < 2**-21


@pytest.mark.parametrize("a_along_k", [True, False])
@pytest.mark.parametrize("b_along_k", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), [(41, 203, 67), (40, 203, 64), (1, 33, 3)])
def test_operands_are_copied_for_loads_of_16_bytes(device, m, k, n, a_along_k, b_along_k):
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    left, right = a if a_along_k else a.t().contiguous().t(), b.t().contiguous().t() if b_along_k else b
    y = torch.full((m, n), torch.nan, device=device)
    triton.launch(replace(POINTERS, copies=True), left, right, y, precision="tf32x3")
    assert "copied" in triton.chosen()
    scale = a.abs().double() @ b.abs().double()
    assert ((y - a.double() @ b.double()).abs() / scale).max() < 2**-21


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # as wanted, says the interpreter's numpy
def test_three_products_of_tf32_know_infinity_nan_and_the_largest_numbers(device):
    largest = torch.finfo(torch.float32).max
    a, b = torch.randn(70, 130, device=device), torch.randn(130, 90, device=device)
    a[3, 5], a[8], b[7, 11], b[9, 40] = torch.inf, 0, torch.nan, -torch.inf
    a[5, 3], a[6, 9], b[:, 50], b[3] = largest, 0, 0, 0.75
    a[20, 20] = torch.tensor(0x7FFFFFFF, dtype=torch.int32, device=device).view(torch.float32)  # NaN as a GPU makes it
    y, right = triton.matmul(a, b, precision="tf32x3"), (a.double() @ b.double()).float()
    assert torch.equal(y.isnan(), right.isnan())
    assert torch.equal(y.isinf(), right.isinf())
    known = right.isfinite()
    assert torch.allclose(y[known], right[known], rtol=1e-5, atol=1e-4)
    assert y[5, 50] == 0.75 * largest


@pytest.mark.parametrize("how", [WAVE, SKINNY, POINTERS], ids=str)
def test_y_may_begin_anywhere(product, how):
    assert product(how, 16, 136, 72, begins=1) < 1


def test_float8_and_tf32_are_read_along_k(product, monkeypatch, device):
    monkeypatch.setattr(triton, "copy_pays", lambda *sizes, **costs: True)
    allowed = 1 if device == "cuda" else 2  # Triton's interpreter truncates to bfloat16, so that all of y is too small
    assert product(LARGE_WAVE, 144, 160, 128, dtype="float8_e4m3fn", a_along_k=False, b_along_k=True) < allowed
    assert "a copied" in triton.chosen()
    a, b = torch.randn(144, 128, device=device), torch.randn(128, 160, device=device)
    y = torch.empty(144, 160, device=device)
    triton.launch(replace(LARGE_WAVE, block_k=32), a, b, y, precision="tf32")
    assert triton.chosen().endswith("tf32, b copied")
    assert torch.allclose(y, (a.double() @ b.double()).float(), atol=0.1)


def test_float32_is_labelled_with_its_precision(device):
    for allowed, label in ((False, "tf32x3"), (True, "tf32")):
        before = torch.backends.cuda.matmul.allow_tf32
        try:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            triton.matmul(torch.randn(40, 40, device=device), torch.randn(40, 40, device=device))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        assert triton.chosen().endswith(label)
    a, b = torch.randn(40, 40, device=device), torch.randn(40, 40, device=device)
    triton.matmul(a, b, precision="ieee")
    assert triton.chosen().endswith("ieee")
    triton.matmul(a[:, :32], b[:32])
    assert triton.chosen().endswith("ieee")
    with pytest.raises(ValueError, match="precision=float16: give ieee, tf32x3 or tf32"):
        triton.matmul(a, b, precision="float16")


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_torchs_newer_setting_of_tf32_is_followed_and_not_stumbled_over(device, precision):
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = precision  # reading allow_tf32 may raise from here on
        triton.matmul(torch.randn(40, 40, device=device), torch.randn(40, 40, device=device))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert triton.chosen().endswith("tf32" if precision == "tf32" else "tf32x3")


def test_operands_that_make_no_product_are_refused(device):
    a = torch.randn(4, 5, device=device)
    with pytest.raises(ValueError, match=r"a \(4, 5\) and b \(4, 5\) make no product"):
        triton.matmul(a, a)
    with pytest.raises(ValueError, match="give one dtype on one device"):
        triton.matmul(a, a.t().double())
    with pytest.raises(Unsupported, match="convert a and b from int32"):
        triton.matmul(a.int(), a.t().int())


LARGE = [
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 8192),
    (128, 8192, 4096),
    (1, 8192, 8192),
    (8192, 16, 4096),
    (4096, 14336, 512),
    (1000, 1001, 999),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn"])
@pytest.mark.parametrize(("m", "n", "k"), LARGE)
def test_large_products_are_right_cuda(make, error, dtype, m, n, k):
    for tf32 in [False, True] if dtype == "float32" else [False]:
        before = torch.backends.cuda.matmul.allow_tf32
        try:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            workload, (a, b) = make("matmul", dtype=dtype, device="cuda", tf32=tf32, size=1, m=m, n=n, k=k)
            assert error(workload.reference(a, b), [triton.matmul(a, b)]) < 1, triton.chosen()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.parametrize("pointers", [False, True])
def test_more_than_2_to_the_31_elements_cuda(pointers):
    k = 2**14 + (63 if pointers else 64)
    a = torch.zeros(2**17, k, dtype=torch.bfloat16, device="cuda")
    a[-2:] = 1
    y = torch.empty(2**17, 64, dtype=torch.bfloat16, device="cuda")
    triton.launch(POINTERS if pointers else WAVE, a, torch.ones(k, 64, dtype=torch.bfloat16, device="cuda"), y)
    assert triton.chosen().startswith("pointers" if pointers else "descriptors")
    assert not y[:-2].any()
    assert (y[-2:] == torch.tensor(k, dtype=torch.bfloat16)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("side", ["m", "n", "k"])
def test_a_side_of_just_below_2_to_the_31_cuda(side):
    long = torch.zeros(1, 2**31 - 1, dtype=torch.bfloat16, device="cuda")
    long[0, -1] = 3
    one = torch.ones(1, 1, dtype=torch.bfloat16, device="cuda")
    a, b = {"m": (long.t(), one), "n": (one, long), "k": (long, one.expand(2**31 - 1, 1))}[side]
    y = triton.matmul(a, b).flatten()
    assert triton.chosen().startswith("pointers")
    assert y[-1] == 3
    assert not y[:-1].any()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("m", "n", "k"), [(512, 512, 8192), (4, 256, 8192), (1024, 1024, 1024), (240, 449, 811), (6, 705, 3843)]
)
def test_graphs_on_two_streams_and_eager_calls_give_the_same_bits_cuda(m, n, k):
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    want = triton.matmul(a, b)
    graphs = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = triton.matmul(a, b)
        graphs.append((stream, graph, y))
    for _ in range(10):
        for stream, graph, y in graphs:
            with torch.cuda.stream(stream):
                y.fill_(torch.nan)
                graph.replay()
        eager = triton.matmul(a, b)
        torch.cuda.synchronize()
        assert torch.equal(eager, want)
        assert all(torch.equal(y, want) for _, _, y in graphs)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k"), [(240, 320, 449), (96, 256, 2101), (6, 704, 3843)])
def test_a_product_that_starts_early_gives_the_same_bits_in_graphs_cuda(m, n, k):
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    want = triton.matmul(a, b)
    assert triton.chosen().endswith("a copied")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ys = [triton.matmul(a, b) for _ in range(5)]
    for _ in range(10):
        for y in ys:
            y.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(y, want) for y in ys)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [WAVE, SKINNY, replace(WAVE, split_k=4), replace(SKINNY, split_k=4)], ids=str)
def test_a_product_that_starts_early_waits_for_the_copies_of_its_operands_cuda(how):
    a, b = torch.randn(16, 1001, device="cuda").half(), torch.randn(1001, 1003, device="cuda").half()
    if not padding.supports_early_start(a):
        pytest.skip("this GPU, or its driver, starts no kernel early")
    late, early = (torch.empty(16, 1003, dtype=torch.float16, device="cuda") for _ in range(2))
    for _ in range(100):  # the memory of the copies is that of the previous ones, which differ
        a.normal_(), b.normal_()
        triton.launch(how, a, b, late)
        a_2, b_2 = a.flip(0), b.flip(1)
        triton.launch(replace(how, early=True), a_2, b_2, early)
        assert triton.chosen().endswith("a copied, b copied")
        assert torch.equal(early.flip(0).flip(1), late)


def test_no_product_starts_early_if_a_graph_cannot_record_it(monkeypatch):
    x = torch.empty(1)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(padding, "has_descriptors", lambda x: True)
    for version, early in ((12_020, False), (12_030, True), (13_000, True)):
        monkeypatch.setattr(padding, "_driver", lambda version=version: version)
        assert padding.supports_early_start(x) == early
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not padding.supports_early_start(x)  # the interpreter knows no such instruction

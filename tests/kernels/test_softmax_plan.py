"""Which CUDA C++ kernel softmax takes for which rows, and that what it is told covers them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from runner.kernels.softmax._cuda_plan import RING_STATE, SLOT_THREADS, SLOTS, Plan, Processor, Rows, plan

H200 = Processor(90, 132, 232_448)
A100 = Processor(80, 108, 166_912)
L40S = Processor(89, 142, 101_376)
CONSUMER = Processor(120, 170, 101_376, cluster=8)  # small clusters, and no shared memory for the ring


def of(cols: int, itemsize: int = 2, rows: int = 1000, processor: Processor = H200, **fields) -> Plan:
    given = {"stride": cols, "column_stride": 1, "aligned": True} | fields
    return plan(Rows(itemsize, rows, cols, **given), processor)


@pytest.mark.parametrize(
    ("itemsize", "cols", "design"),
    [
        (2, 8, "rows"),
        (2, 1024, "rows"),
        (2, 8192, "rows"),
        (2, 8200, "cluster"),
        (2, 16_384, "cluster"),
        (2, 16_392, "cluster"),
        (2, 32_768, "cluster"),
        (2, 32_776, "cluster"),
        (2, 262_144, "cluster"),
        (2, 262_152, "ring"),
        (2, 1_048_576, "ring"),
        (4, 4, "rows"),
        (4, 4096, "rows"),
        (4, 4100, "cluster"),
        (4, 16_384, "cluster"),
        (4, 131_072, "cluster"),
        (4, 131_076, "ring"),
        (4, 1_048_576, "ring"),
        (8, 1024, "general"),
        (2, 7, "general"),
        (2, 65, "rows"),
        (2, 8193, "rows"),
        (4, 50_257, "cluster"),
        (2, 262_145, "cluster"),
        (2, 1_500_001, "ring"),
        (8, 1001, "general"),
    ],
)
def test_each_width_has_its_design_on_hopper(itemsize, cols, design):
    assert of(cols, itemsize).design == f"softmax_{design}"


@pytest.mark.parametrize("processor", [A100, L40S])
def test_without_clusters_wide_rows_are_read_twice(processor):
    assert of(65_536, processor=processor).design == "softmax_rows"
    assert of(65_544, processor=processor).design == "softmax_general"
    assert of(65_544, rows=4, processor=processor).design == "softmax_parts"


def test_a_cluster_has_as_few_blocks_as_hold_the_row():
    assert [of(cols).cluster for cols in (16_392, 32_768, 32_776, 65_536, 65_544, 131_080, 262_144)] == [
        4,
        4,
        4,
        4,
        8,
        16,
        16,
    ]


def test_a_gpu_without_large_clusters_takes_the_ring_and_without_its_shared_memory_reads_twice():
    assert of(131_080, processor=replace(H200, cluster=8)).design == "softmax_ring"
    assert of(131_072, processor=CONSUMER).design == "softmax_cluster"
    assert of(131_080, processor=CONSUMER).design == "softmax_general"


@pytest.mark.parametrize(
    "fields",
    [
        {"cols": 1025, "stride": 1026},
        {"cols": 1024, "stride": 1025},
        {"cols": 1024, "column_stride": 2},
        {"cols": 1024, "aligned": False},
        {"cols": 131_076, "aligned": False},
    ],
)
def test_what_does_not_lie_as_the_output_is_read_one_by_one(fields):
    chosen = of(**fields)
    assert chosen.design == "softmax_general"
    assert chosen.kernel.endswith("Access::elements>")


@pytest.mark.parametrize("processor", [H200, A100])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_vectors_of_a_kernel_cover_any_row_and_those_without_a_bound_are_in_it(itemsize, processor):
    per = 16 // itemsize
    sizes = [*range(2, 700), *range(701, 20_000, 97), 65_536, 65_537, 262_144, 262_145, 300_001]
    for vectors, edges in product(sizes, (0, 1, per - 1)):
        chosen = of(vectors * per + edges, itemsize, processor=processor)
        rows_have = {vectors, vectors - (edges > 0)}  # of whole vectors
        assert edges == 0 or chosen.kernel.endswith(("true>", "Access::edges>"))
        numbers = [int(word) for word in re.findall(r"\b\d+\b", chosen.kernel)]
        if chosen.design == "softmax_rows":
            threads, rows, each, sure, blocks = numbers
            longest, shortest = max(rows_have), min(rows_have)
            assert edges == 0 or threads >= 2 * per
            assert chosen.threads == threads * rows <= 1024
            assert chosen.blocks * rows >= 1000 > (chosen.blocks - 1) * rows
            assert threads * rows * blocks <= 1024
        elif chosen.design == "softmax_cluster":
            threads, each, sure, cluster, _ = numbers
            assert cluster == chosen.cluster
            longest = -(-vectors // cluster)
            shortest = min(one - -(-one // cluster) * (cluster - 1) for one in rows_have)
            assert chosen.threads == threads
            assert chosen.blocks == 1000 * cluster
        elif chosen.design == "softmax_ring":
            slots, threads, each, sure = numbers
            longest = -(-vectors // chosen.slices)  # as ring.cuh has it
            shortest = min(one - -(-one // chosen.slices) * (chosen.slices - 1) for one in rows_have)
            assert chosen.threads == 2 * threads + 64
            assert chosen.blocks == processor.multiprocessors  # of every launch: exchange.cuh
            assert chosen.slices <= slots * chosen.blocks  # or it would wait for itself: ring.cuh
            assert chosen.shared == slots * threads * each * 16 <= processor.shared - RING_STATE
        else:
            continue
        assert shortest > 0
        assert sure * threads <= shortest <= longest <= each * threads
        assert each <= 8
        assert threads & (threads - 1) == 0  # lanes are merged by halves


def test_a_row_of_the_ring_leaves_half_of_it_to_others():
    longest = SLOTS * H200.multiprocessors // 2 * SLOT_THREADS * 8 * 8
    assert of(longest, rows=5).design == "softmax_ring"
    assert of(longest + 8, rows=5).design == "softmax_parts"
    assert of(longest + 8, rows=500).design == "softmax_general"


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("cols", [40_001, 1_000_003, 2**31 + 5])
def test_the_parts_of_a_few_rows_cover_them(cols, itemsize):
    chosen = of(cols, itemsize, rows=3, stride=cols + 1)
    assert chosen.design == "softmax_parts"
    assert chosen.blocks == 3 * chosen.slices
    assert (chosen.slices - 1) * chosen.slice < cols <= chosen.slices * chosen.slice
    assert chosen.slice % 16 == 0

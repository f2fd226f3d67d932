"""Why a call is fast or slow: each reason holds under its condition, and under no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.measure.inspect.why import NAMES, Facts, why

SLOW = Facts(
    "float32",
    time_us=100.0,
    pct_of_measured_peak=40.0,
    bound="memory",
    kernels=1,
    kernel="k",
    load_bits=128,
    registers=32,
)


def test_a_fast_one_says_how_fast_and_by_what():
    fast = replace(SLOW, pct_of_measured_peak=98.2, registers=32)
    assert why(fast) == "one kernel at 98 % of the rate of a copy; 128-bit loads, 32 registers"
    product = replace(fast, bound="compute", tensor=64, bulk=4, load_bits=0)
    assert why(product) == (
        "one kernel at 98 % of the rate of matrix products; bulk copies, 64 tensor-core instructions, 32 registers"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph_breaks": 2}, "torch.compile left the graph in 2 places, which ran eagerly"),
        ({"launch_bound": "a caller waits 90 us"}, "a caller waits 90 us"),
        (
            {"fp64": 12, "fp64_names": "12 DADD"},
            "double-precision instructions on a float32 workload: 12 DADD",
        ),
        (
            {"fp64": 3, "fp64_names": "3 DMUL", "spill_bytes": 32},
            "double-precision instructions on a float32 workload, perhaps in a slow path: 3 DMUL",
        ),
        ({"spill_bytes": 16}, "k keeps 16 bytes per thread in local memory"),
        ({"spill_bytes": 16, "registers": None}, "k keeps 16 bytes per thread in local memory"),
        ({"spill_bytes": 16, "registers": 247}, "k keeps 16 bytes per thread in local memory"),
        ({"spill_bytes": 16, "registers": 250}, "k keeps 16 bytes per thread in local memory for lack of registers"),
        (
            {"spill_bytes": 16, "registers": 64, "registers_allowed": 64},
            "k keeps 16 bytes per thread in local memory for lack of registers",
        ),
        (
            {"kernels": 9, "pct_of_measured_peak": 11.0},
            "9 kernels take 9.1 times the time of moving all bytes once: each kernel moves them again",
        ),
        (
            {"bound": "compute", "dtype": "bfloat16", "tensor": 0},
            "k has no tensor-core instruction, on a product of bfloat16",
        ),
        (
            {"bound": "compute", "tf32": True, "tensor": 0},
            "k has no tensor-core instruction, on a product of float32",
        ),
        (
            {"time_us": 3.1},
            "one kernel in 3.1 us: much of it is starting them and waiting for the first bytes",
        ),
        ({"load_bits": 32}, "k loads at most 32 bits at once, of 128"),
        (
            {},
            "one kernel at 40 % of the rate of a copy, and the code does not show why: try measure=ncu",
        ),
        (
            {"pct_of_measured_peak": None},
            "one kernel; no time to explain: put benchmark before inspect, as in 'measure=[benchmark,inspect]'",
        ),
        ({"arch": 90}, "compiled for sm_90, and not launched"),
    ],
)
def test_a_reason(changes, said):
    assert (
        why(replace(SLOW, **changes)).partition("; 128-bit")[0].partition("; 32-bit")[0].partition("; 32 reg")[0]
        == said
    )


@pytest.mark.parametrize(
    ("changes", "never"),
    [
        ({"fp64": 12, "dtype": "float64"}, "double-precision"),
        ({"fp64": 12, "pct_of_measured_peak": 95.0}, "double-precision"),  # it costs nothing where memory is waited for
        ({"kernels": 9, "pct_of_measured_peak": 40.0}, "moves them again"),  # 2.5 times is not nine
        ({"kernels": 9, "pct_of_measured_peak": 11.0, "bound": "compute"}, "moves them again"),
        ({"bound": "compute", "tensor": 0}, "tensor-core"),  # float32 proper is multiplied without
        ({"bound": "memory", "dtype": "bfloat16", "tensor": 0}, "tensor-core"),
        ({"load_bits": 32, "bulk": 2}, "loads at most"),
        ({"load_bits": 32, "bound": "compute"}, "loads at most"),
        ({"load_bits": 32, "pct_of_measured_peak": 80.0}, "loads at most"),
        ({"time_us": 3.1, "pct_of_measured_peak": 80.0}, "starting"),
    ],
)
def test_a_reason_is_not_given_where_it_does_not_hold(changes, never):
    assert never not in why(replace(SLOW, **changes))


def test_of_torchs_own_kernels_it_says_that_the_name_is_all():
    own = Facts("float32", pct_of_measured_peak=11.0, bound="memory", kernels=9)
    assert why(own).endswith(f"; {NAMES}")


def test_on_a_cpu_there_is_no_measured_peak():
    assert why(Facts("float32", device="cpu", graphs=1)) == (
        "one generated graph; a CPU has no measured peak to compare its time with"
    )

"""Why a call is fast or slow: each reason is given under its condition, and under no other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from runner.measure.inspect.assembly import Code
from runner.measure.inspect.kernel_table import KernelLine
from runner.measure.inspect.why import NAMES, Facts, explain

CODE = Code(
    load_bits=128,
    store_bits=0,
    tensor_instructions=0,
    fp64_instructions=0,
    bulk=0,
    by_name=Counter(),
    fp64_names=Counter(),
)
LINE = KernelLine("k", "triton", 1, registers=32, code=CODE)
FIGURES = {"gpu_us": 100.0, "pct_of_measured_peak": 40.0, "bound": "memory", "n_kernels": 1}


def told(**changes):
    """Return why a slow call is slow, with changed figures, and changed facts about its kernel and code."""

    def of(owner):
        return {name: value for name, value in changes.items() if name in owner}

    fp64 = {
        "fp64_names": Counter(changes.get("fp64_names", {})),
        "fp64_instructions": sum(changes.get("fp64_names", {}).values()),
    }
    code = replace(CODE, **of({"load_bits", "tensor_instructions", "bulk"}), **fp64)
    line = replace(LINE, code=code, **of({"registers", "registers_allowed", "spill_bytes"}))
    figures = FIGURES | of(
        {"gpu_us", "pct_of_measured_peak", "bound", "n_kernels", "graph_breaks", "verdict", "verdict_reason"}
    )
    facts = Facts({name: value for name, value in figures.items() if value is not None}, "float32", main=line)
    return explain(replace(facts, **of({"dtype", "tf32", "arch"})))


def test_a_fast_one_says_how_fast_and_by_what():
    assert told(pct_of_measured_peak=98.2) == "one kernel at 98 % of the rate of a copy; 128-bit loads, 32 registers"
    assert told(pct_of_measured_peak=98.2, bound="compute", tensor_instructions=64, bulk=4, load_bits=0) == (
        "one kernel at 98 % of the rate of matrix products; bulk copies, 64 tensor-core instructions, 32 registers"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph_breaks": 2}, "torch.compile left the graph in 2 places, which ran eagerly"),
        ({"verdict": "launch_bound", "verdict_reason": "a caller waits 90 us"}, "a caller waits 90 us"),
        (
            {"fp64_names": {"DADD": 12}},
            "double-precision instructions on a float32 workload: 12 DADD",
        ),
        (
            {"fp64_names": {"DMUL": 3}, "spill_bytes": 32},
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
            {"n_kernels": 9, "pct_of_measured_peak": 11.0},
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
            {"gpu_us": 3.1},
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
    assert told(**changes).partition("; 128-bit")[0].partition("; 32-bit")[0].partition("; 32 reg")[0] == said


@pytest.mark.parametrize(
    ("changes", "never"),
    [
        ({"fp64_names": {"DADD": 12}, "dtype": "float64"}, "double-precision"),
        (
            {"fp64_names": {"DADD": 12}, "pct_of_measured_peak": 95.0},
            "double-precision",
        ),  # it costs nothing where memory is waited for
        ({"n_kernels": 9, "pct_of_measured_peak": 40.0}, "moves them again"),  # 2.5 times is not nine
        ({"n_kernels": 9, "pct_of_measured_peak": 11.0, "bound": "compute"}, "moves them again"),
        ({"bound": "compute", "tensor": 0}, "tensor-core"),  # float32 proper is multiplied without
        ({"bound": "memory", "dtype": "bfloat16", "tensor": 0}, "tensor-core"),
        ({"load_bits": 32, "bulk": 2}, "loads at most"),
        ({"load_bits": 32, "bound": "compute"}, "loads at most"),
        ({"load_bits": 32, "pct_of_measured_peak": 80.0}, "loads at most"),
        ({"gpu_us": 3.1, "pct_of_measured_peak": 80.0}, "starting"),
    ],
)
def test_a_reason_is_not_given_where_it_does_not_hold(changes, never):
    assert never not in told(**changes)


def test_of_torchs_own_kernels_it_says_that_the_name_is_all():
    own = Facts({"pct_of_measured_peak": 11.0, "bound": "memory", "n_kernels": 9}, "float32")
    assert explain(own).endswith(f"; {NAMES}")


def test_on_a_cpu_there_is_no_measured_peak():
    assert explain(Facts({}, "float32", device="cpu", graphs=1)) == (
        "one generated graph; a CPU has no measured peak to compare its time with"
    )

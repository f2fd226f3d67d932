"""What is read off compute-sanitizer's output; no GPU, and no compute-sanitizer."""

from __future__ import annotations

import pytest

from benchmarks.common import ROOT, fields_of
from benchmarks.kernels.sanitize import IMPLS, SIZES, Look, outcome, report
from runner.device.tools import Ended
from runner.records.options import option_class
from runner.records.schema import build


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("12 calls right, 0 wrong\n========= ERROR SUMMARY: 0 errors", 0, Look(0, 12, True)),
        ("12 calls right, 0 wrong\n========= ERROR SUMMARY: 3 errors", 0, Look(3, 12, False)),
        ("12 calls right, 0 wrong\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)", 0, Look(1, 12, False)),
        ("========= ERROR SUMMARY: 0 errors", 0, Look(0, None, False)),
        ("11 calls right, 1 wrong\n========= ERROR SUMMARY: 0 errors", 1, Look(0, 11, False)),
        ("Device not supported", 0, Look(None, None, False)),
    ],
)
def test_only_a_whole_and_clean_run_passes(text, code, expected):
    assert outcome(Ended(code, text)) == expected


@pytest.mark.parametrize("op", SIZES)
def test_every_size_is_one_of_its_workload(op):
    for point in SIZES[op]:
        build(option_class("models", op), fields_of("workload", op) | point, op)


READS = """========= COMPUTE-SANITIZER
========= Host API memory access error at host access to 0x7f9ca3180000 of size 262,144 bytes
=========     Uninitialized access to 0x7f9ca3180020 on access by cudaMemcpy source
=========
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<...>>(T3)+0x1a0
=========     by thread (51,0,0) in block (0,0,0)
{more}35 calls right, 0 wrong
========= ERROR SUMMARY: {count} errors
"""
ALSO = """========= Uninitialized __global__ memory read of size 8 bytes
=========     at _through_activation+0x2e0 in triton.py:61
"""
OURS = """========= Uninitialized __global__ memory read of size 4 bytes
=========     at _forward+0x2e0 in triton.py:71
=========     by thread (51,0,0) in block (0,0,0)
"""


def test_reads_of_what_the_copy_engine_has_stored_do_not_count():
    assert outcome(Ended(0, READS.format(more="", count=2))) == Look(0, 35, True)
    assert outcome(Ended(0, READS.format(more=ALSO, count=3))) == Look(0, 35, True)
    assert outcome(Ended(0, READS.format(more=OURS, count=3))) == Look(1, 35, False)


def test_only_the_reads_by_which_triton_hands_work_to_warps_are_excused_as_races():
    lines = (ROOT / "kernels/matmul/_triton_roles.py").read_text().splitlines()
    line = lines.index("def matmul_roles(") + 1
    said = """========= Error: Race reported between Read access at {kernel}+0xf0 in _triton_roles.py:{line}
=========     and Write access at {kernel}+0x2a50 in _triton_roles.py:{line} [13 hazards]
=========
56 calls right, 0 wrong
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    assert outcome(Ended(0, said.format(kernel="matmul_roles", line=line))) == Look(0, 56, True)
    assert outcome(Ended(0, said.format(kernel="matmul_roles", line=line + 9))) == Look(1, 56, False)
    assert outcome(Ended(0, said.format(kernel="other", line=line))) == Look(1, 56, False)


def test_the_table_has_a_line_an_operation():
    looks = {
        ("add", "memcheck"): Look(0, 12, True),
        ("add", "racecheck"): Look(0, 12, True),
        ("mlp", "memcheck"): Look(0, 6, True),
        ("mlp", "racecheck"): Look(None, 6, False),
    }
    lines = report(looks).splitlines()
    assert lines[0] == "|  | memcheck | racecheck |  |"
    assert lines[2:] == [
        "| add | 0 in 12 calls | 0 in 12 calls | PASS |",
        "| mlp | 0 in 6 calls | not done | MISS |",
    ]


def test_every_operation_has_implementations():
    assert SIZES.keys() == IMPLS.keys()

"""What is read off compute-sanitizer's output; no GPU, and no compute-sanitizer."""

from __future__ import annotations

import pytest

from benchmarks.sanitize import IMPLS, SIZES, Look, outcome, report
from runner.tool import Ended


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


def test_a_tool_that_was_stopped_does_not_pass():
    assert not outcome(Ended(0, "12 calls right, 0 wrong\n========= ERROR SUMMARY: 0 errors", late=True)).clean


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

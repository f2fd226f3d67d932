"""What is read off compute-sanitizer's output; no GPU, and no compute-sanitizer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.sanitize import outcome


def said(text, code=0):
    words = [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("12 calls right, 0 wrong\n========= ERROR SUMMARY: 0 errors", 0, ("0 errors", "12", "PASS")),
        ("12 calls right, 0 wrong\n========= ERROR SUMMARY: 3 errors", 0, ("3 errors", "12", "MISS")),
        (
            "12 calls right, 0 wrong\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error)",
            0,
            ("1 errors", "12", "MISS"),
        ),
        ("========= ERROR SUMMARY: 0 errors", 0, ("0 errors", "not all", "MISS")),
        ("11 calls right, 1 wrong\n========= ERROR SUMMARY: 0 errors", 1, ("0 errors", "11", "MISS")),
        ("Device not supported", 0, ("no summary", "not all", "MISS")),
    ],
)
def test_only_a_whole_and_clean_run_passes(text, code, expected):
    assert outcome(said(text, code)) == expected

"""Which of the user's files a case names."""

from __future__ import annotations

import pytest

from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings


@pytest.mark.parametrize(
    ("workload", "impl", "files"),
    [
        ({}, {}, set()),
        ({"path": None}, {"of": "torch", "mode": "default"}, set()),
        ({}, {"path": "src/mine.py:f"}, {"src/mine.py"}),
        ({"path": "rms_norm.py"}, {"path": "rms_norm.py:fused"}, {"rms_norm.py"}),
        ({"path": "rms_norm.py"}, {"of": "mine.py:f"}, {"rms_norm.py", "mine.py"}),
    ],
)
def test_files_are_those_of_the_workload_and_of_the_implementation(workload, impl, files):
    case = CaseRecord(Choice("x", workload), Choice("y", impl), (), Settings("cpu", 0))
    assert case.user_files == files

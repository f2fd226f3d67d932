"""A row cannot contradict itself, and is read as it was written."""

from __future__ import annotations

import json

import pytest

from runner.records.columns import COLUMNS
from runner.records.row import HARMLESS, STATUSES, Row


def test_a_row_is_read_as_it_was_written(case):
    row = Row(case=case(), status="wrong", reason="off", metrics={"correct": False, "wall_us": 1.5}, detail="why")
    assert Row.from_record(json.loads(json.dumps(row.to_record()))) == row


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"status": "fine"}, "unknown status"),
        ({"status": "error"}, "with reason ''"),
        ({"status": "ok", "reason": "but"}, "with reason 'but'"),
        ({"status": "error", "reason": "x", "metrics": {"wall_us": 1.0}}, "and yet timed: wall_us"),
        ({"status": "ok", "metrics": {"correct": False}}, "correct=False"),
        ({"status": "wrong", "reason": "x", "metrics": {}}, "correct=None"),
    ],
)
def test_contradictions_are_refused(case, parts, what):
    with pytest.raises(ValueError, match=what):
        Row(case=case(), **parts)


def test_the_time_of_the_gpu_has_precedence(case):
    assert Row(case=case(), status="ok", metrics={"gpu_us": 2.0, "wall_us": 9.0}).time_us == 2.0
    assert Row(case=case(), status="ok", metrics={"wall_us": 9.0}).time_us == 9.0
    assert Row(case=case(), status="ok").time_us is None


def test_three_statuses_do_not_fail_a_run():
    assert {"ok", "unsupported", "skipped"} == HARMLESS
    assert set(STATUSES) > HARMLESS


def test_every_time_column_names_its_unit():
    for name, column in COLUMNS.items():
        assert column.meaning
        if column.unit in ("us", "s", "byte"):
            assert name.endswith({"us": "_us", "s": "_s", "byte": ("_bytes", "bytes_min")}[column.unit])

"""Messages of a worker that a case has written: one that is not due, or has other content, is refused."""

from __future__ import annotations

import json

import pytest

from runner.execute.messages import Due, read_message
from runner.records.row import Row

ROW = {"spoiled": False, "calibrations": {}}  # what comes beside a row
# Each takes ``row(**changes)``, the record of a row of the case that runs.
FORGED = {
    "no message": lambda row: "no message",
    "a number": lambda row: 7,
    "an empty object": lambda row: {},
    "a phase that does not exist": lambda row: {"phase": "lunch"},
    "a phase that is none of a case": lambda row: {"phase": "compare"},
    "a list as a phase": lambda row: {"phase": ["build"]},
    "the start of a worker": lambda row: {"environment": {"torch": "2.13"}},
    "a list as an environment": lambda row: {"environment": [1]},
    "a comparison": lambda row: {"rounds": {"batches_us": {}, "instruments": {}, "reason": "no"}},
    "a compilation": lambda row: {"prepared": {"precompile_s": 1.0}},
    "no room": lambda row: {"full": "no room"},
    "a short row": lambda row: {"row": {"status": "ok"}, **ROW},
    "a row alone": lambda row: {"row": row()},
    "a list as a row": lambda row: {"row": [1], **ROW},
    "a row of another case": lambda row: {"row": row(key="0" * 16), **ROW},
    "a row with digests of its files": lambda row: {"row": row(fingerprint={"python": "3.11", "k.py": "0"}), **ROW},
    "a row with a word as its time": lambda row: {"row": row(metrics={"wall_us": "fast"}), **ROW},
    "a row with a list as its metrics": lambda row: {"row": row(metrics=[1]), **ROW},
    "a row with a list as its device": lambda row: {"row": row(device=[1]), **ROW},
    "a row and a phase": lambda row: {"row": row(), **ROW, "phase": "lunch"},
    "a row and an environment": lambda row: {"row": row(), **ROW, "environment": {}},
    "a row without a reason": lambda row: {"row": row(status="error"), **ROW},
    "a word as a calibration": lambda row: {"row": row(), **ROW, "calibrations": {"zero": "0"}},
    "not a number": lambda row: {"row": row(metrics={"wall_us": float("nan")}), **ROW},
    "a number too large for JSON": lambda row: {"row": row(metrics={"flops": 10**30, "wall_us": "x"}), **ROW},
}


@pytest.fixture
def running(user_case):
    return user_case("k.py", "f")


@pytest.fixture
def row(running):
    record = Row(case=running, status="ok", device="cpu", phase="measure").to_record()
    return lambda **changes: record | changes


def read(message, case):
    return read_message(json.dumps(message).encode(), Due("build", case))


def test_the_row_of_the_case_that_runs_is_read(row, running):
    assert read({"row": row(), **ROW}, running)["row"].case == running
    assert read({"phase": "check"}, running) == {"phase": "check"}


@pytest.mark.parametrize("form", FORGED)
def test_a_message_that_is_not_due_is_refused(form, row, running):
    with pytest.raises(ValueError):  # noqa: PT011  # of whatever part
        read(FORGED[form](row), running)

"""``launcher=local``: the order of its events, and workers that end or hang after their cases have rows."""

from __future__ import annotations

import gc
import resource
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.execute import CannotStart, Ready, Started, local, precompile
from runner.records.case import Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row

USER = """
import os, sys, time, torch

def right(x): return torch.nn.functional.gelu(x, approximate="tanh")

def in_rounds():
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_name == "paired_rounds": return True
    return False

def dies(x):
    if in_rounds(): os._exit(3)
    return right(x)
def hangs(x):
    if in_rounds(): time.sleep(1000)
    return right(x)
def fails(x):
    if in_rounds(): raise ValueError("not again")
    return right(x)
def more_threads(x): torch.set_num_threads(torch.get_num_threads() + 1); return right(x)
def float64(x): torch.set_default_dtype(torch.float64); return right(x)
def no_grad(x): torch.set_grad_enabled(False); return right(x)
def autocast(x): torch.autocast("cpu").__enter__(); return right(x)
def leaves(x): os.chdir("/"); return right(x)
def tf32(x): torch.set_float32_matmul_precision("medium"); return right(x)
def tells(x):
    raise ValueError(f"{torch.get_default_dtype()} {torch.is_grad_enabled()} {torch.get_float32_matmul_precision()}")
"""


@pytest.fixture
def launch(launch_user):
    """Run a grid of the functions above; its events without Started."""
    return lambda *cases, **limits: launch_user(USER, *cases, **limits)


def kinds(events):
    return [type(event) for event in events]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dies", "no paired rounds: the worker exited with code 3"),
        ("hangs", "no paired rounds: no end of phase compare within 3 s; raise launcher.measure_limit_s"),
        ("fails", "ValueError: not again"),
    ],
)
def test_a_comparison_that_fails_costs_no_row_and_the_grid_goes_on(launch, name, reason):
    limits = {"measure_limit_s": 3} if name == "hangs" else {}
    events = launch(("right", 64), (name, 64), ("right", 32), **limits)
    rows = [event for event in events if isinstance(event, Row)]
    (rounds,) = (event for event in events if isinstance(event, PairedRounds))
    assert [row.status for row in rows] == ["ok"] * 3
    assert reason in rounds.reason
    assert not rounds.batches_us


def test_each_problem_is_compared_when_its_cases_are_done(launch):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)  # for the end of the workers
        events = launch(("right", 64), ("fails", 64), ("right", 32))
        gc.collect()
    assert kinds(events) == [Ready, Row, Row, PairedRounds, Row]
    channels = [text for text in (str(warning.message) for warning in caught) if "socket" in text]
    assert not [text for text in channels if "raddr" not in text]  # the tests' own has an address


@pytest.mark.parametrize("name", ["more_threads", "float64", "no_grad", "autocast", "leaves"])
def test_settings_that_a_case_changes_do_not_reach_the_next_one(launch, name):
    events = launch((name, 64), ("right", 64), ("right", 32))
    assert kinds(events) == [Ready, Row, Ready, Row, Row]
    assert [event.status for event in events if isinstance(event, Row)] == ["ok"] * 3


def test_each_case_begins_with_the_precision_of_its_problem(launch):
    *_, row = launch(("tf32", 64), ("tells", 64))
    assert row.reason == "ValueError: torch.float32 True highest"


def test_each_replica_has_a_process_of_its_own(launch):
    events = launch(("right", 64, 0), ("right", 32, 0), ("right", 64, 1), ("right", 32, 1))
    assert kinds(events) == [Ready, Row, Row, Ready, Row, Row]


def test_an_interrupt_keeps_the_row_that_has_arrived_and_starts_no_case(begin_user):
    events = begin_user(USER, ("right", 64), ("right", 32))
    while not isinstance(next(events), Started):
        pass
    time.sleep(5)  # the worker is done by then, and its row has not been read
    row = events.throw(KeyboardInterrupt())
    assert (row.case.workload.fields["cols"], row.status) == (64, "ok")
    with pytest.raises(KeyboardInterrupt):
        next(events)


def test_a_row_says_when_its_case_began(launch):
    began = datetime.now(UTC) - timedelta(milliseconds=1)  # the column has milliseconds
    rows = [event for event in launch(("right", 32), ("right", 64)) if isinstance(event, Row)]
    first, second = (datetime.fromisoformat(row.metrics["started_at"]) for row in rows)
    assert began < first < second < datetime.now(UTC)
    assert (second - first).total_seconds() >= rows[0].metrics["wall_s"] - 0.001


def test_a_file_that_vanishes_costs_its_cases_alone(launch, tmp_path):
    file = tmp_path / "user.py"

    def on_row():
        file.unlink(missing_ok=True)

    events = launch(("right", 64), ("right", 32), ("right", 16), on_row=on_row)
    rows = [event for event in events if isinstance(event, Row)]
    assert [row.status for row in rows] == ["ok", "build_failed", "build_failed"]
    assert rows[1].reason.startswith(f"impl.path: there is no file {file}")


def test_a_file_that_vanishes_before_the_next_workers_start_is_no_error(user_case, tmp_path):
    """Cases with another ``debug`` start when the others are done, since their workers have another environment."""
    gone = user_case(tmp_path / "user.py", "right")
    assert local.modules_to_preload([gone], on_gpu=False) == [
        "kernel_runner.implementations.file",
        "kernel_runner.models.gelu",
        "kernel_runner.timing.cpu",
    ]
    assert precompile.compiled([gone]) == []


@pytest.mark.parametrize(
    ("impl", "fields", "measures", "expected"),
    [
        ("triton", {}, ("benchmark",), []),
        ("compiled", {"of": "torch"}, ("benchmark",), ["torch._dynamo"]),
        ("cudagraph", {"of": "compiled"}, ("benchmark",), ["torch._dynamo"]),
        ("torch", {}, ("benchmark", "profile"), ["torch._dynamo"]),
    ],
)
def test_on_a_gpu_dynamo_is_imported_beforehand_only_if_a_case_needs_it(user_case, impl, fields, measures, expected):
    case = replace(
        user_case(Path("user.py"), "right", device="cuda"),
        impl=Choice(impl, fields),
        measures=tuple(Choice(name, {}) for name in measures),
    )
    assert local.modules_to_preload([case], on_gpu=True) == expected


@pytest.mark.parametrize(("room", "refused"), [(5 * 10**8, True), (10**9, False), (resource.RLIM_INFINITY, False)])
def test_too_little_address_space_is_refused_at_once(room, refused, monkeypatch):
    monkeypatch.setattr(local.resource, "getrlimit", lambda kind: (room, room))
    limits = {f"{phase}_limit_s": 9 for phase in ("start", "build", "check", "measure")}
    rows = local.Local(gpus=0, precompile=0, **limits).run([], "log")
    if refused:
        with pytest.raises(CannotStart, match="ulimit -v allows 500 MB of address space, and torch takes about 1 GB"):
            next(rows)
    else:
        assert list(rows) == []


@pytest.mark.parametrize(("took_s", "deadline"), [(0.2, 50.0), (1.5, 50.0), (101.0, 150.0)])
def test_time_in_which_everything_was_stopped_is_not_counted(monkeypatch, took_s, deadline):
    now = [0.0]
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(local, "wait", lambda *_: now.__setitem__(0, took_s))
    worker = SimpleNamespace(deadline=50.0, watched=[])
    local._wait([worker], [])
    assert worker.deadline == deadline

"""A case once more, for a tool: its ranges, what it says of itself, and why it could not be."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.device import processes
from runner.kernels.spans import watched
from runner.measure import CannotMeasure, MeasureContext
from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings
from runner.timing.call import Call
from runner.worker import AGAIN
from runner.worker import again as program
from runner.worker.again import WARM_UP, again, main
from runner.worker.job import Job
from runner.worker.problem import ProblemState

GELU = {
    "rows": 8,
    "cols": 8,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
MLP = {"dim": 8, "layers": 2, "batch": 4, "steps": 2, "activation": "gelu", "pass": "train_step", "lr": 0.1}
MLP |= {
    "zero_grad": "every_step",
    "optimizer": "sgd",
    "autocast": "none",
    "print_loss": False,
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
}

USER = """
import sys, torch
def fails(x): raise ValueError("of its own")
def exits(x): sys.exit(3)
def wrong(x): return x + 1
"""


@pytest.fixture
def result(tmp_path):
    """What is written of a case, and the exit code."""

    def do(case, calls=3):
        request = MeasureContext("cpu", case, tmp_path).command(calls)[-1]
        code = main(Path(request))
        return code, json.loads((tmp_path / "again.json").read_text())

    return do


@pytest.fixture
def user(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(USER)
    return lambda name, **fields: CaseRecord(
        Choice("gelu", GELU), Choice("file", {"path": f"{path}:{name}"}), (), Settings("cpu", 0, **fields)
    )


def test_calls_are_made_and_timed(result):
    code, found = result(CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (), Settings("cpu", 0)))
    assert code == 0
    assert len(found["calls_us"]) == 3
    assert min(found["calls_us"]) > 0


@pytest.mark.parametrize(
    ("name", "error"),
    {
        "fails": "error in phase build: ValueError: of its own",
        "exits": "error in phase build: SystemExit: 3",
        "wrong": "wrong: y: 64 of 64 elements wrong",
    }.items(),
)
def test_why_there_are_no_calls_is_written(result, user, name, error):
    code, found = result(user(name))
    assert code == 1
    assert found["error"].startswith(error)
    assert "calls_us" not in found


def test_a_wrong_one_is_called_if_that_is_asked_for(result, user):
    assert len(result(user("wrong", time_wrong=True))[1]["calls_us"]) == 3


def test_an_implementation_that_is_not_timed_is_not_called(result, monkeypatch):
    from runner.worker import job

    monkeypatch.setattr(job, "untimed", lambda interpreters, checked: "it is not timed here")
    case = CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (), Settings("cpu", 0))
    assert result(case) == (1, {"error": "unsupported: it is not timed here"})


def test_the_parts_of_a_call_are_ranges_and_no_call_is_in_the_warm_up():
    seen, open_ = [], []

    @contextmanager
    def noted(name):
        open_.append(name)
        seen.append("/".join(open_))
        yield
        open_.pop()

    case = CaseRecord(Choice("mlp", MLP), Choice("torch", {}), (), Settings("cpu", 0))
    with watched(noted):
        again(Job(case, ProblemState(case), lambda phase: None), 2, cold_l2=True)
    assert [name for name in seen if "/" not in name] == ["define_model", "warm_up", "call", "call"]
    assert not any("warm_up" in name and "call" in name for name in seen)
    parts = [
        "",
        "/forward",
        "/forward/layer_0",
        "/forward/layer_1",
        "/forward/loss",
        "/backward",
        "/optimizer_step",
        "/zero_grad",
    ]
    once = ["call", *(f"call/step_{step}{part}" for step in (0, 1) for part in parts)]
    assert [name for name in seen if name.startswith("call")] == [*once, *once]


def test_inputs_are_put_back_before_each_call_and_outside_of_it(result, monkeypatch):
    told = []
    monkeypatch.setattr(
        program, "preparation", lambda reset, cold_l2: lambda: told.append((reset is not None, cold_l2))
    )
    result(CaseRecord(Choice("mlp", MLP), Choice("torch", {}), (), Settings("cpu", 0)), calls=2)
    assert len(told) >= WARM_UP + 2
    assert set(told) == {(True, False)}  # a CPU has no L2 cache to empty


@pytest.mark.parametrize("cold", [True, False])
def test_the_cache_of_a_gpu_is_emptied_before_each_call_unless_the_request_says_otherwise(tmp_path, monkeypatch, cold):
    told = []
    monkeypatch.setattr(program, "preparation", lambda reset, cold_l2: lambda: told.append(cold_l2))
    call = Call(run=lambda: ())
    ready = {"ready": lambda: call, "wrong": "", "untimed": "", "enter": lambda phase: None}
    monkeypatch.setattr(program, "ProblemState", lambda case: SimpleNamespace(device="cuda"))
    monkeypatch.setattr(
        program, "Job", lambda case, problem, on_phase: SimpleNamespace(case=case, problem=problem, **ready)
    )
    case = CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (), Settings("cuda", 0))
    request = MeasureContext("cuda", case, tmp_path).command(2, **({} if cold else {"cold_l2": False}))[-1]
    assert main(Path(request)) == 0
    assert set(told) == {cold}


def test_a_tool_starts_it_as_the_scene_says(tmp_path):
    context = MeasureContext(
        "cpu",
        CaseRecord(Choice("mlp", MLP), Choice("torch", {}), (), Settings("cpu", 0)),
        tmp_path / "of" / "it",
        program=AGAIN,
    )
    ran = subprocess.run(context.command(3), env=processes.environment(), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads((context.folder / "again.json").read_text())["calls_us"]) == 3


def test_a_case_is_not_done_again_where_no_file_can_be_kept():
    with pytest.raises(CannotMeasure, match="no folder"):
        MeasureContext("cpu", CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (), Settings("cpu", 0))).command(1)

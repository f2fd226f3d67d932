"""Grids of a user's functions, run by ``launcher=local``."""

from __future__ import annotations

import importlib.util

import pytest

from runner.execute import Started
from runner.execute.local import Local
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings

EXTRAS = {"ray": "ray", "slurm": "submitit"}  # launcher → the package it needs
collect_ignore = [f"test_{name}.py" for name, package in EXTRAS.items() if importlib.util.find_spec(package) is None]

BENCHMARK = {
    "cold_l2": True,
    "instrument": "auto",
    "captures": 10,
    "buffer_sets": 5,
    "cupti_check": True,
    "measured_peak": False,
    "warmup_s": 0.0,
}
BENCHMARK |= {"samples": 20, "max_s": 60.0, "paired_rounds": 10, "sustained_s": 0.0, "keep_samples": False}
BENCHMARK |= {"race": False, "target_pct": 0.5, "target_cpu_pct": 1e6}  # 20 samples, however busy the machine is
LIMITS = {
    "gpus": 0,
    "precompile": 0,
    "start_limit_s": 120,
    "build_limit_s": 60,
    "check_limit_s": 60,
    "measure_limit_s": 60,
}


def case(path, name, cols=64, replica=0, device="cpu"):
    fields = {"rows": 64, "cols": cols, "form": "tanh", "pass": "fwd"}
    fields |= {"dtype": "float32", "tf32": False, "data": "normal", "layout": "contiguous"}
    impl = Choice("file", {"path": f"{path}:{name}"})
    return CaseRecord(
        Choice("gelu", fields), impl, (Choice("benchmark", BENCHMARK),), Settings(device, 0), replica=replica
    )


@pytest.fixture
def user_case():
    """Make a case of a function in a user's file. The file need not exist."""
    return case


@pytest.fixture
def begin_user(tmp_path):
    """Begin a grid of cases (function, cols, replica, device) of a user's file; an iterator of its events."""
    path = tmp_path / "user.py"

    def go(source, *cases, device="cpu", **limits):
        path.write_text(source)
        built = [case(path, *each) if len(each) > 3 else case(path, *each, device=device) for each in cases]
        return Local(**(LIMITS | limits)).run(built, str(tmp_path / "worker.log"))

    return go


@pytest.fixture
def launch_user(begin_user):
    """Run such a grid; a list of its events without Started."""

    def go(source, *cases, on_row=lambda: None, device="cpu", **limits):
        events = []
        for event in begin_user(source, *cases, device=device, **limits):
            if not isinstance(event, Started):
                events.append(event)
            if isinstance(event, Row):
                on_row()
        return events

    return go

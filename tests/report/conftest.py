"""A finished run's folder, and surroundings in which W&B knows nothing of whoever runs the tests."""

import importlib.util
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.experiment.case import CaseRecord, Choice, Plan
from runner.experiment.results import Row
from runner.store import journal, run_folder


def helper(name):
    """The module of that name beside this file: importlib mode puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location(f"tests_log_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def read_wandb():
    return helper("wandb_reader").read


@pytest.fixture(scope="session")
def records():
    return helper("wandb_reader").records


@pytest.fixture(scope="session")
def loopback():
    return helper("loopback").loopback


@pytest.fixture(scope="session")
def made_up():
    """Rows as a GPU would give them."""
    return helper("made_up")


def isolate(patch, home):
    """No settings, no key, no home of the user's; a name without an owner answers nothing."""
    for name in [*os.environ]:
        if name.startswith("WANDB") or name == "NETRC":
            patch.delenv(name)
    home.mkdir()
    patch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))  # ours stays
    patch.setenv("HOME", str(home))
    patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # should anything be sent, it goes nowhere


@pytest.fixture
def home(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path / "home")
    return tmp_path / "home"


def case(workload, impl, fields, seed=0, **options):
    return CaseRecord(Choice(workload, fields), Choice(impl, options), (Choice("benchmark", {}),), "cpu", seed)


def timed(case, wall_us, status="ok", **metrics):
    size = math.prod(value for value in case.workload.fields.values() if type(value) is int)
    amounts = {"flops": 8 * size, "bytes_min": 8 * size}
    metrics = {"wall_us": wall_us, "interval_pct": 1.0, "separate_pct": 1.0, **amounts, "verdict": status} | metrics
    reason = "" if status == "ok" else "3 of 8192 elements beyond tolerance"
    return Row(case=case, status=status, reason=reason, device="cpu", metrics=metrics | {"correct": status == "ok"})


def sweep():
    """Two workloads, three sizes, three implementations; largest size first. One case each wrong, failed, not there."""
    rows = []
    for cols in (4096, 256, 1000):
        for impl, factor in {"naive": 3.0, "torch": 1.0, "compiled": 0.5}.items():
            one = case("gelu", impl, {"rows": 8, "cols": cols, "dtype": "float32", "tf32": False})
            wrong = impl == "naive" and cols == 1000
            more = {"status": "wrong", "max_rel_err": math.inf, "max_abs_err": math.nan} if wrong else {}
            rows.append(timed(one, factor * cols, samples=20, converged=True, **more))
    for size in (64, 1024, 128):
        for impl, factor in {"naive": 4.0, "torch": 1.0, "compiled": 2.0}.items():
            one = case("matmul", impl, {"size": size, "dtype": "float32", "tf32": True})
            if impl == "compiled" and size == 1024:
                rows.append(Row(case=one, status="error", reason="ValueError: no", device="cpu", phase="build"))
            elif impl == "compiled" and size == 128:
                rows.append(Row(case=one, status="unsupported", reason="not here", phase="plan"))
            else:
                rows.append(timed(one, factor * size, samples=20, converged=size != 64, max_abs_err=1e-6))
    return rows


def finished(folder, rows, baseline=None):
    """``folder`` as the runner leaves it."""
    folder.mkdir(parents=True)
    none = Choice("none", {})
    cases = tuple(row.case for row in rows)
    plan = Plan(cases=cases, name="both", baseline=baseline, output_dir="o", launcher=none, log=())
    run_folder.write_plan(folder, plan, plan.cases)
    run_folder.write_environment(folder, {"command": "python -m runner", "gpu": None})
    with journal.Journal(folder) as results:
        for row in rows:
            results.row(row)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A finished run whose rows are ``sweep()``."""
    return finished(tmp_path / "outputs" / "2025-01-31" / "10-11-12-both", sweep())


@pytest.fixture(scope="session")
def make():
    """The functions above, for tests that want other rows."""
    return SimpleNamespace(case=case, timed=timed, sweep=sweep, finished=finished, isolate=isolate)

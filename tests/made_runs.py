"""Rows and folders of runs, made without running anything: for tests of what reads them."""

import math
import os
from pathlib import Path
from types import SimpleNamespace

from runner.records.case import CaseRecord, Choice
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store import journal, run_folder


def case(workload, impl, fields, seed=0, **options):
    return CaseRecord(
        Choice(workload, fields), Choice(impl, options), (Choice("benchmark", {}),), Settings("cpu", seed)
    )


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


def isolate(patch, home):
    """No settings, no key, no home of the user's; a name without an owner answers nothing."""
    for name in [*os.environ]:
        if name.startswith("WANDB") or name == "NETRC":
            patch.delenv(name)
    home.mkdir()
    patch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))  # ours stays
    patch.setenv("HOME", str(home))
    patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # should anything be sent, it goes nowhere


MAKE = SimpleNamespace(case=case, timed=timed, sweep=sweep, finished=finished, isolate=isolate)

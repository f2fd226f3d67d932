"""The results of races that the runner itself has held: from the rows and paired rounds of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.kernels.races import COPY, Arm, Race, Result
from runner.experiment.results import Row
from runner.report import derive, past


def results(races: Iterable[Race], folder: Path) -> list[Result]:
    """Return the result of each of ``races`` that the run in ``folder`` has cases of."""
    run = past.read(folder)
    rounds = derive.by_key(run.rounds)
    found = []
    for race in races:
        result = Result(race, {}, {})
        for row in (row for row in run.rows if _is_of(row, race)):
            key, name = row.case.key, row.case.impl.name
            if row.status != "ok":
                result.failed[name] = f"{row.status}: {row.reason}"
            elif row.time_us is None or key not in rounds:
                result.failed[name] = "not in the paired rounds"
            else:
                error = row.metrics.get("err_over_tol")
                one = rounds[key]
                result.arms[name] = Arm(
                    row.time_us, one.batches_us[key], one.instruments[key], None if error is None else float(error)
                )
        if result.arms or result.failed:
            found.append(result)
    return found


def _is_of(row: Row, race: Race) -> bool:
    """Return whether ``row`` is of an arm of ``race``. A race without a pass is one of the forward."""
    fields = {"pass": "fwd", **race.fields}
    named = row.case.impl.name in (*race.arms, COPY)
    return row.case.workload.name == race.op and named and all(row.case.workload.fields[k] == fields[k] for k in fields)

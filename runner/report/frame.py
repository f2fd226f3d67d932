"""Rows as a pandas DataFrame: ``frame.load("outputs/...")``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import journal, run_dir
from runner.columns import COLUMNS, DERIVED
from runner.report.derive import Line, Names, lines

if TYPE_CHECKING:
    from pandas import DataFrame


def load(folder: str | Path, baseline: str | None = None) -> DataFrame:
    """The rows of a run's folder, one line per case. Speed-ups are as in the run, or against ``baseline``."""
    contents = journal.load(Path(folder))
    return frame(lines(contents.built(), baseline or _baseline(Path(folder)), contents.rounds))


def _baseline(folder: Path) -> str | None:
    """What speed-ups of the run in ``folder`` are against, as in ``Plan``."""
    try:
        found: str | None = run_dir.read_head(folder)["baseline"]
    except FileNotFoundError:  # the journal alone
        return None
    return found


def frame(of: Iterable[Line]) -> DataFrame:
    """One line per case. Fields are named as on the command line: ``workload.cols``, ``impl.mode``.

    Those of what is observed, and others beside the workload and the implementation, only where they vary.
    """
    import pandas

    found = list(of)
    names = Names([line.row.case for line in found])
    return pandas.DataFrame([flat(line, names) for line in found])


def flat(line: Line, names: Names) -> dict[str, Any]:
    """A line as one flat mapping, the columns of ``runner.columns`` last."""
    row, case = line.row, line.row.case
    metrics = {name: row.metrics[name] for name in COLUMNS if name in row.metrics}
    return {
        "workload": case.workload.name,
        **{f"workload.{name}": value for name, value in case.workload.fields.items()},
        "impl": case.impl.name,
        **{f"impl.{name}": value for name, value in case.impl.fields.items()},
        **names.beside(case),
        "seed": case.seed,
        "device": row.device,
        "status": row.status,
        "reason": row.reason,
        "phase": row.phase,
        **{name: names.value(line, name) for name in DERIVED},
        **metrics,
        "key": case.key,
    }

"""Rows as a pandas DataFrame: ``frame.load("outputs/...")``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.case import Labels
from runner.experiment.columns import COLUMNS, DERIVED
from runner.experiment.schema import BadInput
from runner.report.derive import Line, Names, lines
from runner.store import journal, run_folder

if TYPE_CHECKING:
    from pandas import DataFrame

EXAMPLE = "outputs/<date>/<time>-<name>"


def load(*folders: str | Path, baseline: str | None = None) -> DataFrame:
    """The rows of the runs in ``folders``, one line per case. Speed-ups are as in each run, or against ``baseline``.

    First come ``run``, ``<date>/<time>-<name>`` as in W&B, or the whole path where two have the same; and ``commit``:
    this project's, None if it is not known; all that there were, in their order, of a run that was resumed.

    Raises:
        BadInput: there is no run in one of ``folders``, or none is given, or ``baseline`` is in no run.

    """
    runs = [Path(folder) for folder in folders]
    if not runs:
        raise BadInput(f"no folder is given; give one or more, as {EXAMPLE}")
    read = [_read(run, baseline) for run in runs]
    found = [line for some in read for line in some]
    if found:
        Labels(line.row.case.impl for line in found).check(baseline)
    table = frame(found)
    told_of: dict[str, Sequence[str | None]] = {"run": _names(runs), "commit": list(map(_commit, runs))}
    for place, (name, told) in enumerate(told_of.items()):
        cells = [[one] * len(some) for one, some in zip(told, read, strict=True)]
        table.insert(place, name, [cell for some in cells for cell in some])
    return table


def _read(folder: Path, baseline: str | None) -> list[Line]:
    """A line per case of the run in ``folder``. Raises BadInput if there is none."""
    if not (folder / journal.NAME).is_file():
        what = f"it holds no {journal.NAME}, so it is not the folder of a run"
        newest = run_folder.newest(str(folder), journal.NAME) or run_folder.newest(str(folder.parent), journal.NAME)
        raise BadInput(f"{folder}: {what if folder.is_dir() else 'there is no such folder'}; give {newest or EXAMPLE}")
    contents = journal.load(folder)
    return lines(list(contents.rows.values()), baseline or _baseline(folder), contents.rounds)


def _baseline(folder: Path) -> str | None:
    """What speed-ups of the run in ``folder`` are against, as in ``Plan``."""
    try:
        found: str | None = run_folder.read_head(folder)["baseline"]
    except FileNotFoundError:  # the journal alone
        return None
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """With the date, for a nightly run begins each day at the same time; whole where two machines' are alike."""
    whole = [folder.resolve() for folder in folders]
    short = {path: "/".join(path.parts[-2:]) for path in whole}
    return [short[path] if len(set(short.values())) == len(short) else str(path) for path in whole]


def _commit(folder: Path) -> str | None:
    known = dict.fromkeys(session.get("commit") for session in run_folder.earlier_sessions(folder))
    return ", ".join(filter(None, known)) or None


def frame(of: Iterable[Line]) -> DataFrame:
    """One line per case. Fields are named as on the command line: ``workload.cols``, ``impl.mode``.

    Those of what is observed, and others beside the workload and the implementation, only where they vary.
    """
    import pandas

    found = list(of)
    names = Names([line.row.case for line in found])
    records = [flat(line, names) for line in found]
    return pandas.DataFrame(records, columns=columns(records))


def columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of ``flat`` lines: of the workloads, then of the implementations, then the others; the key comes last."""
    rank = {"workload": 0, "impl": 1, "key": 3}
    found = dict.fromkeys(name for record in records for name in record)
    return sorted(found, key=lambda name: rank.get(name.partition(".")[0], 2))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the columns ``names`` in the order of their declaration; unknown ones, of other versions, come last."""
    given = dict.fromkeys(names)
    return [*(name for name in COLUMNS if name in given), *(name for name in given if name not in COLUMNS)]


def flat(line: Line, names: Names) -> dict[str, Any]:
    """A line as one flat mapping, the columns of ``runner.experiment.columns`` last."""
    row, case = line.row, line.row.case
    metrics = {name: row.metrics[name] for name in in_order(row.metrics)}
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

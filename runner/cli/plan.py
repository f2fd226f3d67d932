"""``python -m runner plan <overrides>``: the cases of that run, their keys, and how long they will take.

Nothing is started or written. With ``resume=`` it says which cases are kept, and why the others run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import runner.config as config
from runner.cli.run import device_names, options
from runner.experiment.case import CaseRecord, Plan
from runner.experiment.results import figure
from runner.experiment.schema import BadInput
from runner.store import journal, resume, run_folder
from runner.store.fingerprint import Fingerprints
from runner.store.resume import Work

if TYPE_CHECKING:
    from rich.table import Table

JSON = "--json"
MOST_ROWS = 20_000  # rows of the newest runs that are read
UNKNOWN = "unknown: no earlier run"  # that resembles the case
SAME, SAME_WORKLOAD, OTHER_WORKLOAD = BASES = (
    "from the same case",
    "from the same workload and implementation",
    "from other workloads with the same implementation",
)


def main(argv: Sequence[str]) -> int:
    """Print the plan and return 0. Raises BadInput as a run would."""
    plan = config.plan([word for word in argv if word != JSON])
    if plan is None:  # Hydra has answered, as for --cfg
        return 0
    from runner.report.terminal import console

    options(plan)
    devices = device_names(plan)
    work, messages = _work(plan, devices)
    guess = estimate([case for case in plan.cases if case.key in work.again], plan.output_dir, devices)
    if JSON in argv:
        for case in plan.cases:
            state = {"state": _state(case, work), "why": work.again.get(case.key, "")}
            seconds = guess.seconds.get(case.key, 0.0)
            print(json.dumps({"key": case.key, **case.to_record(), **state, "estimate_s": seconds}))
        return 0
    for line in _lines(plan, work, guess):
        print(line)
    console().print(_table(plan, work))
    for message in messages:
        print(message)
    plural = "s" * (len(plan.cases) != 1)
    time = f"; time {guess}" if work.again else ""
    print(f"{len(plan.cases)} case{plural}, {len(work.again)} to run{time}. Nothing has been started.")
    return 0


def _lines(plan: Plan, work: Work, guess: Estimate) -> Iterator[str]:
    """Yield a line for each case: its key, its label, and whether it runs, for how long and why."""
    from runner.report.derive import Names

    names = Names(plan.cases)
    replicas = any(case.replica for case in plan.cases)
    labels = [names.case(case) + (f" replica={case.replica}" if replicas else "") for case in plan.cases]
    width = max(map(len, labels))
    for case, label in zip(plan.cases, labels, strict=True):
        state = _state(case, work)
        if case.key in work.again:
            seconds = guess.seconds[case.key]
            time = f"{'unknown':>10}" if seconds is None else f"{figure(seconds, 's', 3):>10}"
            state = f"{time}  {work.again[case.key]}".rstrip()
        yield f"{case.key}  {label:<{width}}  {state}"


def _table(plan: Plan, work: Work) -> Table:
    """Return a table with one line per workload."""
    from rich import box
    from rich.table import Table

    from runner.report.derive import Names

    names, drawn = Names(plan.cases), Table(box=box.SIMPLE_HEAD, header_style="bold")
    for title in ("workload", "cases", "to run", "problems", "varies", "implementations"):
        drawn.add_column(title, justify="right" if title in ("cases", "to run", "problems") else "left")
    for workload in names.axes:
        cases = [case for case in plan.cases if case.workload.name == workload]
        drawn.add_row(
            workload,
            str(len(cases)),
            str(sum(case.key in work.again for case in cases)),
            str(len({case.problem for case in cases})),
            ", ".join(names.problem(cases[0])) or "nothing",
            ", ".join(dict.fromkeys(names.impl(case) for case in cases)),
        )
    return drawn


def _work(plan: Plan, devices: set[str] | None) -> tuple[Work, list[str]]:
    """Return what a run would do, and its messages about the run that it resumes."""
    of = plan.resume.of
    if not of:
        return Work(again={case.key: "" for case in plan.cases}), []
    folder = run_folder.find(of, plan.output_dir, plan.name)
    contents = journal.load(folder)
    work = resume.work(plan.cases, contents, plan.resume, Fingerprints(), devices)
    if plan.resume.whole:
        config.validate([case for case in plan.cases if case.key in work.again])
    messages = resume.summary(folder, work, contents.unreadable)
    if writer := journal.writer(folder):
        messages.append(f"{folder} is being written by {writer}; wait for its end")
    return work, messages


def _state(case: CaseRecord, work: Work) -> str:
    if case.key in work.kept:
        return "kept"
    return "run" if case.key in work.again else "lost"


Kind = tuple[str, ...]  # basis of the estimate, workload, implementation, device: what similar cases share


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of cases in a worker, by key. Starting workers and paired rounds come on top."""

    seconds: dict[str, float | None]  # None: no earlier row resembles the case
    bases: Counter[str]  # number of cases by what their estimate is based on
    rows: int  # rows of earlier runs that were read
    runs: int

    def __str__(self) -> str:
        known = [seconds for seconds in self.seconds.values() if seconds is not None]
        if not known:
            return UNKNOWN
        counts = [(self.bases[basis], basis) for basis in BASES if self.bases[basis]]
        basis = ", ".join(f"{count} {basis}" if counts[1:] else basis for count, basis in counts)
        more = f" and more, {unknown} {UNKNOWN}" if (unknown := len(self.seconds) - len(known)) else ""
        return f"about {duration(sum(known))} ({basis}; {self.rows} rows of {self.runs} earlier runs){more}"


def estimate(cases: Sequence[CaseRecord], output_dir: str, devices: Collection[str] | None = None) -> Estimate:
    """Estimate the time of each case by the median of the most similar rows under ``output_dir``.

    These are rows of the same case, on one of ``devices`` if possible; else of the same workload in the same or in
    other sizes; else of the same implementation.
    """
    found: dict[Kind, list[float]] = {}
    rows = runs = 0
    for folder in sorted((path.parent for path in Path(output_dir).glob(f"*/*/{journal.NAME}")), reverse=True):
        if rows >= MOST_ROWS:
            break
        timed = _timed(folder)
        rows, runs = rows + len(timed), runs + bool(timed)
        for case, device, seconds in timed:
            for kind in _kinds(case, [device]):
                found.setdefault(kind, []).append(seconds)
    medians = {kind: median(seconds) for kind, seconds in found.items()}
    guess = Estimate({}, Counter(), rows, runs)
    for case in cases:
        nearest = next((kind for kind in _kinds(case, devices or ()) if kind in medians), None)
        guess.seconds[case.key] = medians[nearest] if nearest else None
        guess.bases.update([nearest[0]] if nearest else [])
    return guess


def duration(seconds: float) -> str:
    """Return ``4 s``, ``3.3 min`` or ``5.2 h``."""
    unit, size = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
    return f"{max(1, seconds / size):.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"


def _timed(folder: Path) -> list[tuple[CaseRecord, str, float]]:
    """Return case, device and seconds of each row; none if this version cannot read the journal."""
    try:
        rows = journal.read(folder)
    except BadInput:
        return []
    return [(row.case, row.device, float(seconds)) for row in rows if (seconds := row.metrics.get("wall_s"))]


def _kinds(case: CaseRecord, devices: Collection[str]) -> list[Kind]:
    """Return the kinds of cases that ``case`` resembles, the most similar first; each on ``devices``, then on any."""
    known = ["cpu"] if case.device == "cpu" else sorted(devices)
    similar = ((SAME, case.problem), (SAME_WORKLOAD, case.workload.text), (SAME_WORKLOAD, case.workload.name))
    return [
        (*kind, case.impl_label, device)
        for kinds in (similar, ((OTHER_WORKLOAD, ""),))
        for device in (*known, "")
        for kind in kinds
    ]

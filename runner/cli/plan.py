"""``python -m runner plan <overrides>``: the grid that those overrides mean, its keys, and how long it will take.

Nothing is started, and nothing is written. With ``resume=`` it says which cases are kept, and why the others are run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from runner import config
from runner.cli.run import device_names, options
from runner.experiment.case import CaseRecord, Plan
from runner.store import journal, resume, run_folder
from runner.store.fingerprint import Fingerprints
from runner.store.resume import Work

if TYPE_CHECKING:
    from rich.table import Table

JSON = "--json"


def main(argv: Sequence[str]) -> int:
    """0, whatever the plan is. Raises BadInput as a run would."""
    plan = config.plan([word for word in argv if word != JSON])
    if plan is None:  # --help, --cfg: Hydra has answered
        return 0
    from runner.report.terminal import console

    options(plan)
    names = device_names(plan)
    work, told = _work(plan, names)
    guess = estimate([case for case in plan.cases if case.key in work.again], plan.output_dir, names)
    if JSON in argv:
        for case in plan.cases:
            state = {"state": _state(case, work), "why": work.again.get(case.key, "")}
            seconds = guess.seconds.get(case.key, 0.0)
            print(json.dumps({"key": case.key, **case.to_record(), **state, "estimate_s": seconds}))
        return 0
    for line in lines(plan, work, guess):
        print(line)
    console().print(table(plan, work))
    for line in told:
        print(line)
    plural = "s" * (len(plan.cases) != 1)
    print(f"{len(plan.cases)} case{plural}, {len(work.again)} to run: {guess}. Nothing has been started.")
    return 0


def lines(plan: Plan, work: Work, guess: Estimate) -> Iterator[str]:
    """One of each case: its key, its label, and what will become of it."""
    from runner.report.derive import Names

    names = Names(plan.cases)
    replicas = any(case.replica for case in plan.cases)
    said = [names.case(case) + (f" replica={case.replica}" if replicas else "") for case in plan.cases]
    width = max(map(len, said))
    for case, text in zip(plan.cases, said, strict=True):
        state = _state(case, work)
        if case.key in work.again:
            state = f"{guess.seconds[case.key]:8.1f} s  {work.again[case.key]}".rstrip()
        yield f"{case.key}  {text:<{width}}  {state}"


def table(plan: Plan, work: Work) -> Table:
    """One line per workload."""
    from rich import box
    from rich.table import Table

    from runner.report.derive import Names

    names, drawn = Names(plan.cases), Table(box=box.SIMPLE_HEAD, header_style="bold")
    for title in ("workload", "cases", "to run", "points", "varies", "implementations"):
        drawn.add_column(title, justify="right" if title in ("cases", "to run", "points") else "left")
    for workload in dict.fromkeys(case.workload.name for case in plan.cases):
        some = [case for case in plan.cases if case.workload.name == workload]
        drawn.add_row(
            workload,
            str(len(some)),
            str(sum(case.key in work.again for case in some)),
            str(len({case.problem for case in some})),
            ", ".join(names.problem(some[0])) or "nothing",
            ", ".join(dict.fromkeys(names.impl(case) for case in some)),
        )
    return drawn


def _work(plan: Plan, names: set[str] | None) -> tuple[Work, list[str]]:
    """What a run would do, and what it would say of an earlier one."""
    of = plan.resume.of
    if not of:
        return Work(again={case.key: "" for case in plan.cases}), []
    folder = run_folder.find(of, plan.output_dir, plan.name)
    contents = journal.load(folder)
    work = resume.work(plan.cases, contents, plan.resume, Fingerprints(), names)
    if plan.resume.whole:
        config.validate([case for case in plan.cases if case.key in work.again])
    busy = journal.writer(folder)
    told = [f"{folder} is being written by {busy}: its run is not over"] if busy else []
    return work, [*resume.summary(folder, work, contents.unreadable), *told]


def _state(case: CaseRecord, work: Work) -> str:
    if case.key in work.kept:
        return "kept"
    return "run" if case.key in work.again else "lost"


ROWS = 20_000  # of the newest runs; older ones are not read
UNKNOWN_S = 1.0  # of a case whose like was never run

Kind = tuple[str, ...]  # of cases that may be alike


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of some cases in a worker, by key. Starting workers and comparisons come on top."""

    seconds: dict[str, float]
    rows: int  # that it is based on
    runs: int
    same: int  # cases that are among them
    alike: int  # cases whose workload and implementation is, but not they themselves
    unlike: int  # cases whose implementation is not

    @property
    def total_s(self) -> float:
        """Total seconds, one case after the other."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing to run"
        count, loosely = len(self.seconds), len(self.seconds) - self.same - self.alike - self.unlike
        parts = [
            (self.same, "by the same case"),
            (self.alike, "by their workload and implementation"),
            (loosely, "by their implementation, of other workloads"),
            (self.unlike, f"taken for {UNKNOWN_S:g} s each"),
        ]
        basis = ", ".join(how if some == count else f"{some} {how}" for some, how in parts if some)
        return f"about {duration(self.total_s)} ({basis}; {self.rows} rows of {self.runs} earlier runs known)"


def estimate(cases: Sequence[CaseRecord], output_dir: str, devices: Collection[str] | None = None) -> Estimate:
    """Medians of the seconds that rows of the same case took, on the same device if possible.

    Else of the same workload, sizes and all, and implementation; else of that workload in other sizes; else of the
    implementation, else ``UNKNOWN_S``. ``devices``: the GPUs that will be used, if they are known.
    """
    found: dict[Kind, list[float]] = {}
    rows = runs = 0
    for folder in sorted((path.parent for path in Path(output_dir).glob(f"*/*/{journal.NAME}")), reverse=True):
        if rows >= ROWS:
            break
        took = _took(folder)
        rows, runs = rows + len(took), runs + bool(took)
        for case, device, seconds in took:
            for kind in _kinds(case, [device]):
                found.setdefault(kind, []).append(seconds)
    medians = {kind: median(some) for kind, some in found.items()}
    guessed: dict[str, float] = {}
    same = alike = unlike = 0
    for case in cases:
        nearest: Kind = next((kind for kind in _kinds(case, devices or ()) if kind in medians), ())
        guessed[case.key] = medians[nearest] if nearest else UNKNOWN_S
        of = nearest[0] if nearest else ""
        same += of == case.problem
        alike += of not in ("", case.problem)
        unlike += not nearest
    return Estimate(guessed, rows, runs, same, alike, unlike)


def duration(seconds: float) -> str:
    """``3 min 20 s``: two units, the larger not 0."""
    whole = max(1, round(seconds))
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def _took(folder: Path) -> list[tuple[CaseRecord, str, float]]:
    """Case, device and seconds of each row; none of a journal that this version cannot read."""
    try:
        rows = journal.read(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [(row.case, row.device, float(seconds)) for row in rows if (seconds := row.metrics.get("wall_s"))]


def _kinds(case: CaseRecord, devices: Collection[str]) -> list[Kind]:
    """Kinds of cases that this one resembles, the nearest first."""
    on = ["cpu"] if case.device == "cpu" else sorted(devices)
    near = (case.problem, case.workload.text, case.workload.name)  # with all that is asked of it, with sizes, by name
    return [(of, case.impl_label, device) for level in (near, ("",)) for device in (*on, "") for of in level]

"""``python -m runner plan <overrides>``: the grid that those overrides mean, its keys, and how long it will take.

Nothing is started, and nothing is written. With ``resume=`` it says which cases are kept, and why the others are run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runner import config
from runner.cli.run import console, devices, ends
from runner.experiment.case import Case, Plan
from runner.store import journal, resume
from runner.store.fingerprint import Fingerprints
from runner.store.resume import Work

if TYPE_CHECKING:
    from rich.table import Table

    from runner.report.estimate import Estimate

JSON = "--json"


def main(argv: Sequence[str]) -> int:
    """0, whatever the plan is. Raises BadInput as a run would."""
    plan = config.plan([word for word in argv if word != JSON])
    if plan is None:  # --help, --cfg: Hydra has answered
        return 0
    from runner.report.estimate import estimate

    ends(plan)
    names = devices(plan)
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
    folder = resume.find(of, plan.output_dir, plan.name)
    contents = resume.load(folder)
    work = resume.work(plan.cases, contents, plan.resume, Fingerprints(), names)
    if plan.resume.whole:
        config.validate([case for case in plan.cases if case.key in work.again])
    busy = journal.writer(folder)
    told = [f"{folder} is being written by {busy}: its run is not over"] if busy else []
    return work, [*resume.sentences(folder, work, contents.torn), *told]


def _state(case: Case, work: Work) -> str:
    if case.key in work.kept:
        return "kept"
    return "run" if case.key in work.again else "lost"

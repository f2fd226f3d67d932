"""Print the cases of a run, their keys, and how long they will take, and start nothing.

Times are estimated from rows of earlier runs under output_dir, scaled to the sizes asked for; without a similar row
they are a guess (~) from operations, bytes and rough rates of this machine. With resume= it says which cases are kept,
and why the others run. --format json prints a record per case, with its whole configuration.

Examples:
  python -m runner plan workload=gelu,mlp impl=naive,torch -m
  python -m runner plan resume=last --format json

"""

from collections.abc import Iterator, Sequence

from .. import config
from ..config import grid
from ..findings.duration import GUESSES, Estimate, estimate
from ..findings.names import Names
from ..records.case import CaseRecord
from ..records.figures import counted, figure
from ..records.grouping import grouped
from ..records.plan import Plan
from ..report.flat_formats import json_text
from ..report.table import Table, text_of
from ..store import journal, resume, run_folder
from ..store.fingerprint import Fingerprints
from ..store.resume import Remaining
from ._parser import Parser
from .run import device_names, options


def main(argv: Sequence[str]) -> int:
    """Print the plan and return 0. Raises BadInput as a run would."""
    arguments = Parser("plan", __doc__, ("overrides", "format"), formats=("table", "json")).parse(argv)
    plan = config.plan(arguments.overrides)
    options(plan)
    devices = device_names(plan)
    work, messages = _work(plan, devices)
    again = [case for case in plan.cases if case.key in work.again]
    guess = estimate(again, plan.output_dir, devices, plan.launcher.fields)
    if arguments.format == "json":
        print(json_text([_record(case, work, guess) for case in plan.cases]), end="")
        return 0
    time = f"; time {guess}" if work.again else ""
    print("\n".join([*_lines(plan, work, guess), "", _table(plan, work), *messages]))
    print(f"{counted(len(plan.cases), 'case')}, {len(work.again)} to run{time}. Nothing has been started.")
    return 0


def _record(case: CaseRecord, work: Remaining, guess: Estimate) -> dict[str, object]:
    state = {"state": _state(case, work), "why": work.again.get(case.key, "")}
    estimated = {"estimate_s": guess.seconds.get(case.key, 0.0), "estimate_from": guess.bases.get(case.key, "")}
    return {"key": case.key, **case.to_record(), **state, **estimated}


def _lines(plan: Plan, work: Remaining, guess: Estimate) -> Iterator[str]:
    """Yield a line for each case: its key, its label, and whether it runs, for how long and why."""
    names = Names(plan.cases)
    replicas = any(case.replica for case in plan.cases)
    labels = [names.case(case) + (f" replica={case.replica}" if replicas else "") for case in plan.cases]
    width = max(map(len, labels))
    for case, label in zip(plan.cases, labels, strict=True):
        state = _state(case, work)
        if case.key in work.again:
            seconds = guess.seconds[case.key]
            time = "unknown" if seconds is None else figure(seconds, "s", 3)
            sign = "~" if guess.bases.get(case.key) in GUESSES else ""
            state = f"{sign + time:>10}  {work.again[case.key]}".rstrip()
        yield f"{case.key}  {label:<{width}}  {state}"


def _table(plan: Plan, work: Remaining) -> str:
    names, rows = Names(plan.cases), []
    for workload, cases in grouped(plan.cases, lambda case: case.workload.name).items():
        again = sum(case.key in work.again for case in cases)
        counts = [len(cases), again, len({case.problem for case in cases})]
        varies = ", ".join(names.problem(cases[0])) or "nothing"
        impls = ", ".join(dict.fromkeys(names.impl(case) for case in cases))
        rows.append([workload, *map(str, counts), varies, impls])
    heads = ("workload", "cases", "to run", "problems", "varies", "implementations")
    return text_of(Table("", heads, [("", rows)], left=frozenset({0, 4, 5})))


def _work(plan: Plan, devices: set[str] | None) -> tuple[Remaining, list[str]]:
    """Return the cases that a run would measure, and messages about the run that it resumes."""
    of = plan.resume.of
    if not of:
        return Remaining(again={case.key: "" for case in plan.cases}), []
    folder = run_folder.find(of, plan.output_dir, plan.name)
    contents = journal.load(folder)
    work = resume.remaining(plan.cases, contents, plan.resume, Fingerprints(), devices)
    if plan.whole:
        grid.validate([case for case in plan.cases if case.key in work.again])
    messages = resume.resume_messages(folder, work, contents.unreadable)
    if writer := journal.writer(folder):
        messages.append(f"{folder} is being written by {writer}; wait for its end")
    return work, messages


def _state(case: CaseRecord, work: Remaining) -> str:
    if case.key in work.kept:
        return "kept"
    return "run" if case.key in work.again else "lost"

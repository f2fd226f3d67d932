"""``python -m runner tune``: the fastest arguments of a kernel.

Candidates are all combinations of the values given for impl.args, and the implementation's default. Workloads and
everything else are chosen as for a run; -m is implied, and each problem has its own winner. The candidates of a problem
are sampled in turn, in paired rounds. After 20, 40, 80, ... rounds, those shown to be slower than the fastest are left
out. It ends when one is left, or when the ratios of the others to the fastest are known to target_pct: these cannot be
told from it. The true fastest is left out with a probability of at most 5 %. The winner and the default are then
measured again in other processes, because the times that chose the winner would flatter it.

Exit codes: 0 each problem has a winner; 1 a problem has none; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.experiment.case import CaseRecord, Plan, Resume
from runner.experiment.schema import BadInput, Parser
from runner.timing.statistics import BATCHES

if TYPE_CHECKING:
    from runner.report.derive import Names
    from runner.report.tune import Contest

EXAMPLES = """
  python -m runner tune workload=softmax workload.cols=1000 impl=triton impl.args.ROWS=1,2,4 impl.args.num_warps=1,2,4,8
  python -m runner tune workload=add impl=file impl.path=my_add.py:add impl.args.BLOCK=1024,4096 device=cpu
"""


def main(argv: Sequence[str]) -> int:
    """Measure, print the winners and how to run them, and return the exit code. Raises BadInput."""
    from runner import config
    from runner.cli.run import FIRST_SIGNAL, as_sweep, carry_out, early_zygote
    from runner.report import tune
    from runner.report.derive import Names

    options, overrides = _parse(argv)
    words = as_sweep(overrides)
    with early_zygote(words) as early:
        plan = config.plan(words)
        if plan is None:
            return 0
        _check(plan)
        contests = tune.contests(plan.cases)
        if all(len(one.cases) == 1 for one in contests):
            raise BadInput("nothing to tune: give arguments with their values, as in impl.args.BLOCK=512,1024,2048")
        if len(contests) > len({one.default.problem for one in contests}):
            raise BadInput(
                "impl: tune compares the arguments of one implementation; give one, without other fields to sweep"
            )
        names = Names([case for one in contests for case in one.cases])
        cases = [tune.racing(case) for one in contests for case in one.cases]
        session, code = carry_out(_next(plan, cases, None), ["tune", *argv], early)
        if code >= FIRST_SIGNAL:
            return code
        contests = [tune.judge(one, *session.grid()) for one in contests]
        again = [
            tune.confirming(case, process, options.processes)
            for process in range(1, options.processes + 1)
            for one in contests
            if one.fastest and one.fastest.key != one.default.key
            for case in (one.default, one.fastest)
        ]
        if again:
            print(f"tune: the winner and the default again, in {options.processes} more processes", flush=True)
            session, code = carry_out(_next(plan, again, session.folder), ["tune", *argv])
            if code >= FIRST_SIGNAL:
                return code
            contests = [tune.confirm(one, options.processes, *session.grid()) for one in contests]
    _conclude(contests, names, session.folder / "tuned")
    return 0 if all(one.fastest for one in contests) else 1


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the overrides and flags of a run. Raises BadInput."""
    parser = Parser(
        prog="runner tune",
        description=__doc__,
        examples=EXAMPLES,
        usage="runner tune [options] workload=... impl=... impl.args.NAME=VALUE,VALUE... [overrides]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=3,
        metavar="N",
        help="processes that measure the winner and the default again, for the gain (default 3)",
    )
    options, overrides = parser.parse_known_args(argv)
    if options.processes < 1:
        raise BadInput(f"--processes {options.processes}: give a whole number, at least 1")
    return options, overrides


def _check(plan: Plan) -> None:
    """Raise BadInput if the cases of ``plan`` cannot race."""
    if plan.resume.of:
        raise BadInput("resume: tune cannot go on with an earlier run; leave resume out")
    for case in plan.cases:
        if case.replica:
            raise BadInput("replicas: tune starts processes of its own; leave replicas out, and see --processes")
        if case.debug:
            raise BadInput(f"debug={case.debug}: its timings are not valid; leave debug out")
        if [one.name for one in case.measures] != ["benchmark"]:
            raise BadInput("measure: tune compares times; give measure=benchmark alone")
        rounds = case.measures[0].fields["paired_rounds"]
        if not isinstance(rounds, int) or rounds < BATCHES:
            raise BadInput(
                f"measure.benchmark.paired_rounds={rounds}: tune compares in paired rounds; give at least 10"
            )


def _next(plan: Plan, cases: Sequence[CaseRecord], folder: Path | None) -> Plan:
    """Return ``plan`` with these cases, to begin a run's folder or to go on in ``folder``."""
    order = {problem: place for place, problem in enumerate(dict.fromkeys(case.problem for case in cases))}
    sorted_cases = tuple(sorted(cases, key=lambda case: (case.replica, order[case.problem])))
    resume = Resume(of=str(folder), trust=True) if folder else plan.resume
    return replace(plan, cases=sorted_cases, baseline=None, resume=resume)


def _conclude(contests: Sequence[Contest], names: Names, folder: Path) -> None:
    """Print what was found, and write an experiment for each winner that is not the default."""
    from runner.report import reproduce, tune

    for place, one in enumerate(contests, 1):
        found = tune.lines(one, names)
        print("\n".join(found))
        if one.fastest is None or one.fastest.key == one.default.key:
            continue
        name = f"tuned_{one.default.workload.name}" + (f"_{place}" if len(contests) > 1 else "")
        path = folder / "experiment" / f"{name}.yaml"
        about = "; ".join(line.strip() for line in found[:2]).removeprefix("tune: ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tune.experiment(one.fastest, name, about, str(folder)), encoding="utf-8")
        print(f"  to run it: {reproduce.command(one.fastest)}")
        print(f"         or: python -m runner --config-dir {folder} +experiment={name}")

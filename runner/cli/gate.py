"""Decide whether a change makes anything slower, wrong or failing; for CI.

``--against REV`` measures the working tree beside a git revision, in the same paired rounds, so that no earlier
measurement and no quiet machine is needed. Workloads and implementations are chosen as for a run; -m is implied.
``--baseline RUN RUN2`` measures nothing and judges RUN2 by RUN.

Exit codes: 0 nothing is slower; 1 something is slower, wrong or failing; 2 bad input; 3 unclear; 130 interrupted.

Examples:
  python -m runner gate --against origin/main +experiment=compare_gelu
  python -m runner gate --against HEAD~1 workload=gelu impl=triton,cuda --max-slowdown 1%
  python -m runner gate --against HEAD workload=add impl=file impl.path=my_add.py:add device=cpu --summary gate.md
  python -m runner gate --baseline outputs/<date>/<time>-<name> last

"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import config
from ..findings import gate
from ..findings.gate import GateDecision, Sides, before_after, decide, exit_code
from ..findings.past import read_runs
from ..findings.run_comparison import compare_runs
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.figures import parse_share
from ..records.plan import Plan
from ..records.redaction import redact_command
from ..report.gate import comment, terminal_lines
from ..report.output import write_file
from ._couples import Couple, find_couples
from ._parser import Parser
from .run import as_sweep, carry_out, early_zygote

REPLICAS = 2  # processes that measure a pair again: with the first one enough for a spread between processes
UNDECIDED = "**UNCLEAR**: the gate ended before it had decided; its output says why\n"


def main(argv: Sequence[str]) -> int:
    """Measure if asked to, print the decision and return the exit code. Raises BadInput."""
    options = _parse(argv)
    command = ["gate", *argv]
    if options.baseline:
        return _conclude(options, *_of_runs(options), command)
    if options.against is None:
        raise BadInput("give --against <git revision>, as in --against origin/main, or --baseline RUN RUN2")
    return _conclude(options, _measured(options, command), Sides(options.against, "the working tree"), command)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    usage = "--against REV [OVERRIDE...] [options] | --baseline RUN RUN2 [output_dir=FOLDER]"
    parser = Parser("gate", __doc__, ("overrides",), usage=usage)
    side = parser.add_mutually_exclusive_group()
    side.add_argument("--against", metavar="REV", help="git revision to compare the working tree with")
    side.add_argument("--baseline", nargs=2, metavar=("RUN", "RUN2"), help="folders of two runs, or last")
    parser.add_argument(
        "--max-slowdown",
        type=lambda text: parse_share(text, "--max-slowdown "),
        default=0.03,
        metavar="X",
        help="largest slowdown that passes: 3%% (default), 0.03",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=2,
        metavar="N",
        help="how often what is slower or unclear is measured again, in two more processes (default 2; 0: never)",
    )
    parser.add_argument("--all", action="store_true", help="measure also what is the same in both")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result as Markdown, for a pull request")
    options = parser.parse(argv)
    if options.summary:
        write_file(options.summary, UNDECIDED, "--summary FILE")  # whether it can be written is better known now
    if options.repeat < 0:
        raise BadInput(f"--repeat {options.repeat}: give a whole number, at least 0")
    return options


def _of_runs(options: argparse.Namespace) -> tuple[list[GateDecision], Sides]:
    output_dir = Parser("gate --baseline", __doc__, ("output_dir",)).parse(options.overrides).output_dir
    runs = read_runs(options.baseline, output_dir)
    sides = gate.Sides(str(runs[0].folder), str(runs[1].folder))
    (found,) = compare_runs(runs, (sides.before, sides.after))
    return decide([*found.pairs, *found.left_out], options.max_slowdown), sides


def _conclude(
    options: argparse.Namespace, decisions: Sequence[GateDecision], sides: Sides, command: Sequence[str]
) -> int:
    """Print the decision, write the summary, and return the exit code. Raises BadInput if that cannot be written."""
    print("\n".join(terminal_lines(decisions, sides, options.max_slowdown)))
    if options.summary:
        text = comment(decisions, sides, options.max_slowdown, redact_command(["python", "-m", "runner", *command]))
        write_file(options.summary, text, "--summary FILE")
    return exit_code(decisions)


def _measured(options: argparse.Namespace, command: Sequence[str]) -> list[GateDecision]:
    """Measure both revisions and return the decisions. ``command`` is recorded as the command line. Raises BadInput."""
    if any(word.lstrip("+").startswith("resume") for word in options.overrides):
        raise BadInput("resume: a gate measures both revisions in the same minutes; leave resume out")
    words = as_sweep(options.overrides)
    with early_zygote(words) as early:
        plan = config.plan(words)
        _check(plan)
        couples, left_out, names = find_couples(plan, words, options.against, everything=options.all)
        findings = left_out
        plan = replace(plan, cases=_in_turn(couples), baseline=None)
        couples = [couple for couple in couples if couple[0].replica == 0]
        session = None
        for left in reversed(range(options.repeat + 1 if couples else 0)):
            session, _ = carry_out(plan, command, early, session)
            findings = decide(before_after(couples, *session.grid(), names), options.max_slowdown) + left_out
            again = [couples[place] for place in gate.again(findings)]
            if not (again and left):
                break
            print(f"\ngate: {len(again)} slower or unclear; measured again in {REPLICAS} more processes", flush=True)
            first = 1 + max(case.replica for case in plan.cases)
            replicas = range(first, first + REPLICAS)
            more = [replace(case, replica=replica) for replica in replicas for case in _in_turn(again)]
            plan, early = replace(plan, cases=(*plan.cases, *more)), None
    return findings


def _check(plan: Plan) -> None:
    """Raise BadInput if two revisions of the cases of ``plan`` cannot be compared."""
    for case in plan.cases:
        if case.impl.revision:
            raise BadInput(f"impl.rev={case.impl.revision}: a gate compares with --against; leave impl.rev out")
        if case.settings.debug:
            raise BadInput(f"debug={case.settings.debug}: its timings are not valid; leave debug out")
        if all(one.name != "benchmark" for one in case.measures):
            raise BadInput("measure: a gate compares times; add measure=benchmark")


def _in_turn(couples: Sequence[Couple]) -> tuple[CaseRecord, ...]:
    return tuple(case for couple in couples for case in couple)

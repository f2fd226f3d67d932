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

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .. import config, implementations
from ..device.processes import ROOT
from ..findings import gate
from ..findings.gate import GateDecision, Sides, before_after, decide, exit_code
from ..findings.names import Names
from ..findings.past import newest_rows, read_runs
from ..findings.run_comparison import Pair, compare_runs
from ..implementations import revisions
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Choice
from ..records.figures import parse_share
from ..records.plan import Plan
from ..records.redaction import redact_command
from ..records.row import Row
from ..report.gate import comment, terminal_lines
from ..report.output import write_file
from ..store.fingerprint import Fingerprints, difference, functions_of, paths
from ..tasks import own_file
from ._parser import Parser
from .run import as_sweep, carry_out, device_names, early_zygote

Couple = tuple[CaseRecord, CaseRecord]  # before the change, and after it
REPLICAS = 2  # processes that measure a pair again: with the first one enough for a spread between processes
UNDECIDED = "**UNCLEAR**: the gate ended before it had decided; its output says why\n"
UNCHANGED = "all files that they use are the same in both; --all measures them too"
UNKNOWN = "no earlier run under {} has recorded the files that they use"
WITHOUT_REVISIONS = "PyTorch's own operators have no revisions here"


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
    parser = Parser(
        "gate",
        __doc__,
        ("overrides",),
        usage="--against REV [OVERRIDE...] [options] | --baseline RUN RUN2 [output_dir=FOLDER]",
    )
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
        names = Names(plan.cases)
        couples, skipped = _couples(plan, options.against, names, everything=options.all)
        with config.composer(words) as (_, flags):
            yaml_files = sorted(Path(flags.config_dir).rglob("*.yaml")) if flags.config_dir else []
        _note_shared(plan, options.against, yaml_files)
        findings = decide(skipped, options.max_slowdown)
        plan = replace(plan, cases=_in_turn(couples), baseline=None)
        couples = [couple for couple in couples if couple[0].replica == 0]
        session = None
        for left in reversed(range(options.repeat + 1 if couples else 0)):
            session, _ = carry_out(plan, command, early, session)
            findings = decide([*before_after(couples, *session.grid(), names), *skipped], options.max_slowdown)
            again = [couples[place] for place in gate.again(findings)]
            if not (again and left):
                break
            print(f"\ngate: {len(again)} slower or unclear; measured again in {REPLICAS} more processes", flush=True)
            first = 1 + max(case.replica for case in plan.cases)
            more = [
                replace(case, replica=replica) for replica in range(first, first + REPLICAS) for case in _in_turn(again)
            ]
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


def _couples(plan: Plan, against: str, names: Names, *, everything: bool) -> tuple[list[Couple], list[Pair]]:
    """Return each case to measure with that of the revision ``against`` before it, and the pairs that are skipped.

    A pair is skipped if a row of an earlier run lists all files that the case uses, and all are the same in both. Print
    why others are measured without a known change. Raises BadInput if there is no such revision.
    """
    before = {case.impl.text: _revised(case.impl, against) for case in plan.cases}
    if not any(before.values()):
        without = ", ".join(dict.fromkeys(case.impl.name for case in plan.cases))
        raise BadInput(f"impl: {without}: {WITHOUT_REVISIONS}; choose others, as in impl=triton or impl=file")
    revised = [case for case in plan.cases if before[case.impl.text]]
    rows = {} if everything else newest_rows(revised, plan.output_dir, device_names(plan))
    fingerprints, couples, skipped = Fingerprints(), [], []
    without_change: Counter[str] = Counter()  # why they are measured, unless a file is known to have changed
    for case in plan.cases:
        impl, row = before[case.impl.text], rows.get(case.shared_key)
        changed = impl and row and _has_changed(row, impl)
        reason = difference(fingerprints.now(row), row.fingerprint) if row else UNKNOWN.format(plan.output_dir)
        if impl and (everything or changed or reason):
            couples.append((replace(case, impl=impl), case))
            without_change.update([reason] if case.replica == 0 and not (everything or changed) else [])
        elif case.replica == 0:
            skipped.append(Pair(*names.parts(case), doubt=UNCHANGED if impl else WITHOUT_REVISIONS))
    for reason, count in without_change.items():
        print(f"gate: measuring {count} without a known change: {reason}", flush=True)
    return couples, skipped


def _revised(impl: Choice, against: str) -> Choice | None:
    """Return ``impl`` at the revision ``against``; None if it has no files that a revision could change.

    Raises BadInput if there is no such revision.
    """
    if implementations.build(impl).revised() is None:
        return None
    try:
        return implementations.checked(Choice(impl.name, {**impl.fields, "rev": against}))
    except BadInput as error:
        text = str(error).removeprefix(f"impl.rev={against}").removeprefix("impl.rev").removeprefix(": ")
        raise BadInput(f"--against {against}: {text.replace('leave impl.rev out, or ', '')}") from None


def _has_changed(row: Row, before: Choice) -> bool:
    """Return whether a file that the case of ``row`` has used differs in the revision of ``before``.

    The runner's own and those of its workloads do not count: both revisions use the working tree's. Of the file of an
    own workload, the functions that the implementation runs count.
    """
    place = implementations.build(row.case.impl).revised()
    assert place is not None
    snapshot = revisions.snapshot(str(before.fields["rev"]), place)
    shared = tuple(f"{ROOT}/{name}/" for name in ("runner/implementations", "runner/models"))
    workload = _own_file(row.case)

    def differs(path: str) -> bool:
        if path != str(workload):
            return snapshot.differs(path)
        functions = functions_of(row.case.impl, Path(path))
        return bool(functions) and own_file.differs(Path(path), snapshot.place(Path(path)), functions)

    return any(differs(path) for path in paths(row.fingerprint) if not path.startswith(shared))


def _own_file(case: CaseRecord) -> Path | None:
    """Return the user's file with the workload of ``case``; None for a workload of this project."""
    path = case.workload.fields.get("path")
    return None if path is None else Path(os.path.abspath(str(path)))


def _note_shared(plan: Plan, against: str, yaml_files: Sequence[Path]) -> None:
    """Print a line for each file that differs in the revision ``against``, but that both sides use as it is here.

    These are the ``yaml_files``, and workload files whose inputs, reference or limits differ.
    """
    workloads = dict.fromkeys(filter(None, map(_own_file, plan.cases)))
    for path in (*workloads, *yaml_files):
        with suppress(BadInput):  # the file is in another repository than the functions, or in none
            snapshot = revisions.snapshot(revisions.resolve(against, path), path)
            there, what = snapshot.place(path), "its fields"
            differs = snapshot.differs(str(path))
            if path in workloads:
                what = "inputs, reference or limits"
                differs = there.is_file() and own_file.differs(path, there, own_file.PARTS)
            if differs:
                text = f"{path.name}: {what} are others in {against}"
                print(f"gate: {text}; both sides use those of the working tree", flush=True)


def _in_turn(couples: Sequence[Couple]) -> tuple[CaseRecord, ...]:
    return tuple(case for couple in couples for case in couple)

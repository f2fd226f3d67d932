"""``python -m runner gate``: whether a change makes anything slower, wrong or failing. For CI.

``--against REV`` measures the working tree beside a git revision, in the same paired rounds, so that no earlier
measurement and no quiet machine is needed. Workloads and implementations are chosen as for a run; -m is implied.
``--baseline RUN RUN2`` measures nothing and judges RUN2 by RUN.

Exit codes: 0 nothing is slower; 1 something is slower, wrong or failing; 2 bad input; 3 unclear; 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.experiment.case import CaseRecord, Choice, Plan, Resume
from runner.experiment.schema import BadInput, Parser, share

if TYPE_CHECKING:
    from runner.report.derive import Names
    from runner.report.gate import Finding, Pair, Sides
    from runner.store.fingerprint import Fingerprints

    Couple = tuple[CaseRecord, CaseRecord]  # before the change, and after it

EXAMPLES = """
  python -m runner gate --against origin/main +experiment=compare_gelu
  python -m runner gate --against HEAD~1 workload=gelu impl=triton,cuda --max-slowdown 1%
  python -m runner gate --against HEAD workload=add impl=file impl.path=my_add.py:add device=cpu --summary gate.md
  python -m runner gate --baseline outputs/<date>/<time>-<name> last
"""
REPLICAS = 2  # processes that measure a pair again: with the first one enough for a spread between processes
UNDECIDED = "**UNCLEAR**: the gate ended before it had decided; its output says why\n"
UNCHANGED = "their files are the same in both; --all measures them too"
WITHOUT_REVISIONS = "PyTorch's own operators have no revisions here"


def main(argv: Sequence[str]) -> int:
    """Measure if asked to, print the decision and return the exit code. Raises BadInput."""
    options, overrides = _parse(argv)
    command = ["gate", *argv]
    if options.baseline:
        findings, sides = _of_runs(options, overrides)
        return _conclude(options, findings, sides, command)
    if options.against is None:
        raise BadInput("give --against <git revision>, as in --against origin/main, or --baseline RUN RUN2")
    found = _measured(options, overrides, command)
    if isinstance(found, int):
        return found
    from runner.report.gate import Sides

    return _conclude(options, found, Sides(options.against, "the working tree"), command)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the overrides and flags of a run. Raises BadInput."""
    parser = Parser(
        prog="runner gate",
        description=__doc__,
        examples=EXAMPLES,
        usage="runner gate --against REV [options] [overrides] | --baseline RUN RUN2 [options]",
        allow_abbrev=False,
    )
    side = parser.add_mutually_exclusive_group()
    side.add_argument("--against", metavar="REV", help="git revision to compare the working tree with")
    side.add_argument("--baseline", nargs=2, metavar=("RUN", "RUN2"), help="folders of two runs, or last")
    parser.add_argument(
        "--max-slowdown",
        type=lambda text: share(text, "--max-slowdown "),
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
    options, overrides = parser.parse_known_args(argv)
    if options.summary:
        _write(options.summary, UNDECIDED)  # whether it can be written is better known now
    if options.repeat < 0:
        raise BadInput(f"--repeat {options.repeat}: give a whole number, at least 0")
    return options, overrides


def _of_runs(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[list[Finding], Sides]:
    """Return the decision on two runs. Raises BadInput."""
    from runner.report import compare, gate, past

    output_dir = past.OUTPUTS
    for word in overrides:
        name, _, value = word.partition("=")
        if name != "output_dir":
            raise BadInput(f"{word}: --baseline measures nothing, so it takes no overrides; leave it out")
        output_dir = value
    runs = past.read_all(options.baseline, output_dir)
    sides = gate.Sides(str(runs[0].folder), str(runs[1].folder))
    found = gate.of_runs(compare.pairs(runs[0], runs[1], (sides.before, sides.after)))
    return gate.judge(found, options.max_slowdown), sides


def _conclude(options: argparse.Namespace, findings: Sequence[Finding], sides: Sides, command: Sequence[str]) -> int:
    """Print the decision, write the summary, and return the exit code. Raises BadInput if that cannot be written."""
    from runner.experiment.results import redact_command
    from runner.report import gate

    print("\n".join(gate.terminal_lines(findings, sides, options.max_slowdown)))
    if options.summary:
        text = gate.comment(findings, sides, options.max_slowdown, redact_command(["python -m runner", *command]))
        _write(options.summary, text)
    return gate.exit_code(findings)


def _write(path: Path, text: str) -> None:
    """Write ``text`` to ``path``. Raises BadInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"--summary {path}: cannot write there: {error.strerror or error}") from None


def _measured(options: argparse.Namespace, overrides: Sequence[str], command: Sequence[str]) -> list[Finding] | int:
    """Measure both revisions and return the decisions; the exit code if Hydra has answered or the user has stopped it.

    ``command`` is recorded as the command line. Raises BadInput.
    """
    from runner import config
    from runner.cli.run import FIRST_SIGNAL, as_sweep, carry_out, early_zygote
    from runner.report import gate
    from runner.report.derive import Names

    if any(word.lstrip("+").startswith("resume") for word in overrides):
        raise BadInput("resume: a gate measures both revisions in the same minutes; leave resume out")
    words = as_sweep(overrides)
    with early_zygote(words) as early:
        plan = config.plan(words)
        if plan is None:
            return 0
        _check(plan)
        names = Names(plan.cases)
        couples, skipped = _couples(plan, options.against, names, everything=options.all)
        findings = gate.judge(skipped, options.max_slowdown)
        plan = replace(plan, cases=_in_turn(couples), baseline=None)
        couples = [couple for couple in couples if couple[0].replica == 0]
        for left in reversed(range(options.repeat + 1 if couples else 0)):
            session, code = carry_out(plan, command, early)
            if code >= FIRST_SIGNAL:
                return code
            findings = gate.judge([*gate.pairs(couples, *session.grid(), names), *skipped], options.max_slowdown)
            again = [couples[place] for place in gate.again(findings)]
            if not (again and left):
                break
            print(
                f"\ngate: {len(again)} slower or unclear so far; measured again in {REPLICAS} more processes",
                flush=True,
            )
            plan, early = _longer(plan, session.folder, again), None
    return findings


def _check(plan: Plan) -> None:
    """Raise BadInput if two revisions of the cases of ``plan`` cannot be compared."""
    for case in plan.cases:
        if case.impl.revision:
            raise BadInput(f"impl.rev={case.impl.revision}: a gate compares with --against; leave impl.rev out")
        if case.debug:
            raise BadInput(f"debug={case.debug}: its timings are not valid; leave debug out")
        if all(one.name != "benchmark" for one in case.measures):
            raise BadInput("measure: a gate compares times; add measure=benchmark")


def _couples(plan: Plan, against: str, names: Names, *, everything: bool) -> tuple[list[Couple], list[Pair]]:
    """Return each case to measure with that of the revision ``against`` before it, and the pairs that are skipped.

    Raises BadInput if there is no such revision.
    """
    from runner.report.gate import Pair
    from runner.store.fingerprint import Fingerprints

    fingerprints = Fingerprints()
    before: dict[str, Choice | None] = {}
    same: dict[tuple[str, str], bool] = {}
    couples, skipped = [], []
    for case in plan.cases:
        if case.impl.text not in before:
            before[case.impl.text] = _revised(case.impl, against)
        impl, kind = before[case.impl.text], (case.workload.name, case.impl.text)
        if impl and not everything and kind not in same:
            same[kind] = _is_unchanged(case, impl, fingerprints)
        if impl and not same.get(kind):
            couples.append((replace(case, impl=impl), case))
        elif case.replica == 0:
            skipped.append(Pair(names.case(case), skipped=UNCHANGED if impl else WITHOUT_REVISIONS))
    if not any(before.values()):
        without = ", ".join(dict.fromkeys(case.impl.name for case in plan.cases))
        raise BadInput(f"impl: {without}: {WITHOUT_REVISIONS}; choose others, as in impl=triton or impl=file")
    return couples, skipped


def _revised(impl: Choice, against: str) -> Choice | None:
    """Return ``impl`` at the revision ``against``; None if it has no files that a revision could change.

    Raises BadInput if there is no such revision.
    """
    from runner import implementations

    if implementations.build(impl).revised() is None:
        return None
    try:
        return implementations.checked(Choice(impl.name, {**impl.fields, "rev": against}))
    except BadInput as error:
        text = str(error).removeprefix(f"impl.rev={against}").removeprefix("impl.rev").removeprefix(": ")
        raise BadInput(f"--against {against}: {text.replace('leave impl.rev out, or ', '')}") from None


def _is_unchanged(case: CaseRecord, before: Choice, fingerprints: Fingerprints) -> bool:
    """Return whether all files that ``case`` runs are the same in the revision of ``before``.

    The runner's own and those of the workloads do not count: both revisions use the working tree's.
    """
    from runner import implementations
    from runner.device.processes import ROOT
    from runner.implementations import revisions

    place = implementations.build(case.impl).revised()
    assert place is not None
    snapshot = revisions.snapshot(str(before.fields["rev"]), place)
    shared = [(ROOT / name).resolve() for name in ("runner", "models")]
    for path in fingerprints.files(case):
        real = path.parent.resolve() / path.name
        if not real.is_relative_to(snapshot.worktree) or any(real.is_relative_to(folder) for folder in shared):
            continue
        there = snapshot.place(path)
        if not (real.is_file() and there.is_file() and real.read_bytes() == there.read_bytes()):
            return False
    return True


def _in_turn(couples: Sequence[Couple]) -> tuple[CaseRecord, ...]:
    return tuple(case for couple in couples for case in couple)


def _longer(plan: Plan, folder: Path, couples: Sequence[Couple]) -> Plan:
    """Return ``plan`` with more replicas of ``couples``, to go on in ``folder``."""
    first = 1 + max(case.replica for case in plan.cases)
    more = [replace(case, replica=replica) for replica in range(first, first + REPLICAS) for case in _in_turn(couples)]
    return replace(plan, cases=(*plan.cases, *more), resume=Resume(of=str(folder), trust=True))

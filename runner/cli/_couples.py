"""Find what a gate compares: each case of the working tree with that of a git revision."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .. import config, implementations
from ..device.processes import ROOT
from ..device.used_paths import FILES
from ..findings.gate import GateDecision, Word
from ..findings.names import Names
from ..findings.past import newest_rows
from ..findings.run_comparison import Pair
from ..implementations import revisions
from ..records.bad_input import BadInput
from ..records.case import CaseRecord, Choice
from ..records.grouping import grouped
from ..records.plan import Plan
from ..records.row import Row
from ..store.fingerprint import Fingerprints, difference, functions_of, paths
from ..tasks import own_file
from .run import device_names

Couple = tuple[CaseRecord, CaseRecord]  # before the change, and after it
UNCHANGED = "all files that they use are the same in both; --all measures them too"
UNKNOWN = "no earlier run under {} has recorded the files that they use"
SINCE = " (since the run that recorded the files that they use)"
WITHOUT_REVISIONS = "PyTorch's own operators have no revisions here"


def find_couples(
    plan: Plan, words: Sequence[str], against: str, *, everything: bool
) -> tuple[list[Couple], list[GateDecision], Names]:
    """Return each case to measure after that of the revision ``against``, decisions on the others, and names of all.

    ``words`` are those of ``plan``. A case is skipped if a row of an earlier run lists all files that it uses, and all
    are the same in both. Print why others are measured without a known change. Raises BadInput if there is no such
    revision.
    """
    try:
        earlier = _earlier_plan(plan, words, against)
    except BadInput as error:
        print(f"gate: {error}; both sides use the YAML files of the working tree, and everything is measured")
        earlier, everything = plan, True
    matched = _matched(plan, earlier)
    cases = {(case.workload.name, case.impl.text): case for case in matched.values()}
    revised = {place: _revised(case, against) for place, case in cases.items()}
    if earlier is plan and not any(revised.values()):
        without = ", ".join(dict.fromkeys(case.impl.name for case in plan.cases))
        raise BadInput(f"impl: {without}: {WITHOUT_REVISIONS}; choose others, as in impl=triton or impl=file")
    rows = {} if everything else newest_rows(plan.cases, plan.output_dir, device_names(plan))
    fingerprints, couples = Fingerprints(), []
    left_out: list[tuple[CaseRecord, Word, str]] = []  # with its reason
    without_change: Counter[str] = Counter()  # why they are measured, unless a change is known
    for case in plan.cases:
        if case.key not in matched:
            left_out.append((case, "new", f"not in the YAML files of {against}"))
            continue
        impl, row = matched[case.key].impl, rows.get(case.shared_key)
        before = revised[case.workload.name, impl.text]
        changed = impl != case.impl or bool(row and before and _has_changed(row, before))
        now = fingerprints.now(row) if row else {}
        reason = difference(now, row.fingerprint) if row else UNKNOWN.format(plan.output_dir)
        reason += SINCE * bool(row and reason and now[FILES] == row.fingerprint[FILES])
        if changed or (before and (everything or reason)):
            couples.append((replace(case, impl=before or impl), case))
            without_change.update([reason] if case.replica == 0 and not (everything or changed) else [])
        else:
            left_out.append((case, "skipped", UNCHANGED if before else WITHOUT_REVISIONS))
    still_there = {case.key for case in matched.values()}
    gone = [case for case in earlier.cases if case.key not in still_there]
    left_out += [(case, "removed", f"only in the YAML files of {against}") for case in gone]
    for reason, count in without_change.items():
        print(f"gate: measuring {count} without a known change: {reason}", flush=True)
    _note_shared(plan, against)
    names = Names([*plan.cases, *earlier.cases])
    ends = [GateDecision(Pair(*names.parts(case)), word, reason) for case, word, reason in left_out if not case.replica]
    return couples, ends, names


def _earlier_plan(plan: Plan, words: Sequence[str], against: str) -> Plan:
    """Return the plan of ``words`` with the YAML files of ``--config-dir`` as they are in the revision ``against``.

    It is ``plan`` if they do not differ there, or if the revision has no such folder. Raises BadInput if it has other
    options, or if they do not fit the code of the working tree.
    """
    with config.composer(words) as (_, flags):
        folder = Path(flags.config_dir or os.devnull)
    try:
        snapshot = revisions.snapshot(revisions.resolve(against, folder), folder)
    except BadInput:  # the folder is in another repository than the functions, or in none
        return plan
    there = snapshot.place(folder)
    if not (there.is_dir() and any(snapshot.differs(str(path)) for path in folder.rglob("*.yaml"))):
        return plan
    try:
        return config.plan([*words, "--config-dir", str(there)])
    except BadInput as error:
        raise BadInput(f"--config-dir {folder} in {against}: {error}") from None


def _matched(plan: Plan, earlier: Plan) -> dict[str, CaseRecord]:
    """Return the case of ``earlier`` that each case of ``plan`` is compared with, by the key of the latter.

    An implementation whose fields differ is the same one if its problem has one of that name in both.
    """

    def place(case: CaseRecord) -> tuple[object, ...]:
        return case.workload.text, case.settings.identity, case.replica, case.impl.name

    there, matched = grouped(earlier.cases, place), {}
    for where, cases in grouped(plan.cases, place).items():
        before = {case.impl.text: case for case in there.get(where, ())}
        for case in cases:
            if case.impl.text in before:
                matched[case.key] = before[case.impl.text]
            elif len(before) == len(cases) == 1:
                (matched[case.key],) = before.values()
    return matched


def _revised(case: CaseRecord, against: str) -> Choice | None:
    """Return the implementation of ``case`` at the revision ``against``; None if no file of it could change.

    Raises BadInput if there is no such revision.
    """
    impl = case.impl
    if "path" in case.workload.fields and implementations.build(impl).missing(case.workload.name):
        path = f"{case.workload.fields['path']}:{impl.name}"  # of a function that has been removed
        impl = Choice(impl.name, {**impl.fields, "path": path, "rev": against})
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

    def differs(path: str) -> bool:
        if path != row.case.own_file:
            return snapshot.differs(path)
        functions = functions_of(row.case.impl, Path(path))
        return bool(functions) and own_file.differs(Path(path), snapshot.place(Path(path)), functions)

    return any(differs(path) for path in paths(row.fingerprint) if not path.startswith(shared))


def _note_shared(plan: Plan, against: str) -> None:
    """Print a line for each workload file whose inputs, reference or limits differ in the revision ``against``."""
    for path in map(Path, dict.fromkeys(case.own_file for case in plan.cases if case.own_file)):
        with suppress(BadInput):  # the file is in another repository than the functions, or in none
            there = revisions.snapshot(revisions.resolve(against, path), path).place(path)
            if there.is_file() and own_file.differs(path, there, own_file.PARTS):
                text = f"{path.name}: inputs, reference or limits are others in {against}"
                print(f"gate: {text}; both sides use those of the working tree", flush=True)

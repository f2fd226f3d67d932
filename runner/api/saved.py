"""Rows of ``runner.bench`` as the folder of a run."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..findings.run import Run
from ..records.case import BENCH, CaseRecord, Choice
from ..records.paired_rounds import PairedRounds
from ..records.plan import NAME, NAME_RULE

if TYPE_CHECKING:
    from ..records.row import Row
    from ..store.fingerprint import Fingerprints
    from ..store.provenance import Repositories

NEEDED = "a saved run needs {}; pip install 'kernel-runner[cli]'"


def save(run: Run, name: str, output_dir: str | Path) -> Path:
    """Write ``run`` into a new folder under ``output_dir`` and return it.

    Raises ValueError if ``name`` cannot name a folder, ModuleNotFoundError, and OSError.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: {NAME_RULE}")
    try:
        from ..device import identity
        from ..findings.flat import flat_records
        from ..report.case_table import case_table
        from ..report.flat_formats import csv_text
        from ..report.output import ROWS, TABLE, keep
        from ..report.table import markdown_of
        from ..store import run_folder
        from ..store.fingerprint import Fingerprints
        from ..store.journal import Journal
        from ..store.provenance import Repositories
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NEEDED.format(error.name), name=error.name) from None
    run = _named(run, name)
    fingerprints, repositories = Fingerprints(), Repositories()
    run = replace(run, rows=[_traced(row, fingerprints, repositories) for row in run.rows])
    facts = {**run_folder.environment(["python", *sys.argv], repositories), "worker": identity.describe()}
    folder = run_folder.claim(str(output_dir), name)
    try:
        run_folder.write_plan(folder, run.plan, run.plan.cases)
        run_folder.write_environment(folder, facts)
        with Journal(folder) as journal:
            for row in run.rows:
                journal.start(row.case)
                journal.row(row)
            for rounds in run.rounds:
                journal.rounds(rounds)
            journal.settle()
    except BaseException:
        run_folder.withdraw(folder)
        raise
    run = replace(run, folder=folder)
    keep(folder / ROWS, csv_text(flat_records(run.lines)))
    keep(folder / TABLE, markdown_of(case_table(run, run.lines)))
    return folder


def as_name(text: str) -> str:
    """Return the end of ``text`` as the name of a run: ``test_speed.py-test_softmax-64``."""
    return re.sub(r"[^\w.+-]+", "-", text)[-100:].strip("-.+") or BENCH


def _traced(row: Row, fingerprints: Fingerprints, repositories: Repositories) -> Row:
    """Return ``row`` with the commit and the fingerprint of the file that its function is from, as they are now."""
    files = [Path(path) for path in row.fingerprint]
    commit = repositories.provenance(files) if files else {}
    return replace(row, metrics={**row.metrics, **commit}, fingerprint=fingerprints.of_program(row))


def _named(run: Run, name: str) -> Run:
    """Return ``run`` with the workload called ``name`` in all its cases; what told problems apart is a field."""

    def renamed(workload: Choice) -> Choice:
        arguments = {} if "n" in workload.fields else {"args": workload.name}
        return Choice(name, {**arguments, **workload.fields})

    cases = {case.key: replace(case, workload=renamed(case.workload)) for case in run.plan.cases}
    rows = [replace(row, case=cases[row.case.key]) for row in run.rows]
    rounds = [_moved(each, cases) for each in run.rounds]
    return replace(run, plan=replace(run.plan, name=name, cases=tuple(cases.values())), rows=rows, rounds=rounds)


def _moved(rounds: PairedRounds, cases: Mapping[str, CaseRecord]) -> PairedRounds:
    """Return ``rounds`` with the keys of ``cases``, which are given by their former keys."""

    def moved(values: Mapping[str, Any]) -> dict[str, Any]:
        return {cases[key].key: value for key, value in values.items()}

    return PairedRounds(moved(rounds.batches_us), moved(rounds.instruments))

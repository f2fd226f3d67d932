"""Which rows of an earlier run still count, and why the others do not."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.experiment.case import CaseRecord, Resume
from runner.experiment.results import Row
from runner.experiment.schema import BadInput
from runner.store import journal, run_folder
from runner.store.fingerprint import Fingerprints, difference
from runner.store.journal import Contents

LAST = "last"
MOST_DEATHS = 2  # of the runner itself, with the same case in flight: it may be the case that kills it


@dataclass(frozen=True)
class Work:
    """What is left of a grid. Cases are meant by their keys."""

    kept: dict[str, Row] = field(default_factory=dict)  # rows that count
    again: dict[str, str] = field(default_factory=dict)  # why a case is run
    lost: tuple[Row, ...] = ()  # of cases that are not to be tried again
    outside: int = 0  # cases of the folder that are not in the grid


def find(of: str, output_dir: str, name: str | None) -> Path:
    """The folder that ``resume=<of>`` means; ``last`` is the newest under ``output_dir`` called ``name``, if given.

    Raises BadInput if there is none, or no journal in it.
    """
    if of == LAST:
        folder = run_folder.newest(output_dir, journal.NAME, name)
        if folder is None:
            called = f" called {name}" if name else ""
            # The name is of its workloads.
            whole = "give the whole command of the one that you mean, or " if name else ""
            start = f"{whole}leave resume out to start one"
            raise BadInput(f"resume=last: there is no run{called} under {output_dir}; {start}")
        return folder
    folder = Path(of)
    if not folder.is_dir():
        raise BadInput(f"resume={of}: there is no such folder; give last, or one that holds a {journal.NAME}")
    if not (folder / journal.NAME).is_file():
        raise BadInput(f"resume={of}: it holds no {journal.NAME}, so it is not the folder of a run")
    return folder


def check_owner(folder: Path) -> None:
    """Raise BadInput if another user owns ``folder`` or everybody can write to it. Root may go on anywhere.

    Resuming runs what the folder's cases name, a user's file included, so the folder must be this user's alone.
    """
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        return
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        problem = "another user owns it"
    elif facts.st_mode & stat.S_IWOTH:
        problem = "everybody can write to it"
    else:
        return
    raise BadInput(f"resume={folder}: {problem}; if you trust what it names as code, add resume.trust=true")


def load(folder: Path) -> Contents:
    """The journal of ``folder``. Raises BadInput if it cannot be read."""
    try:
        return journal.load(folder)
    except OSError as error:
        raise BadInput(f"resume={folder}: its journal cannot be read: {error.strerror or error}") from None


def work(
    cases: Sequence[CaseRecord],
    contents: Contents,
    settings: Resume,
    fingerprints: Fingerprints,
    devices: Collection[str] | None = None,
) -> Work:
    """What is to be run of ``cases``, given what ``contents`` says of them.

    ``devices``: names of those that a case which asks for no CPU will run on; None if that is not known.
    """
    kept, again, lost = {}, {}, []
    for case in cases:
        row = contents.rows.get(case.key)
        why = _why(case, row, contents, settings, fingerprints, devices)
        if not why and row is not None:
            kept[case.key] = row
        elif contents.deaths.get(case.key, 0) >= MOST_DEATHS and "lost" not in settings.retry:
            lost.append(_lost(case, contents.deaths[case.key], fingerprints))
        else:
            again[case.key] = why
    grid = {case.key for case in cases}
    return Work(kept, again, tuple(lost), len((contents.rows.keys() | contents.unreadable) - grid))


def _why(
    case: CaseRecord,
    row: Row | None,
    contents: Contents,
    settings: Resume,
    fingerprints: Fingerprints,
    devices: Collection[str] | None,
) -> str:
    """In half a sentence; "" if its row counts."""
    if case.key in contents.unreadable:
        return "its row is of another version of the runner"
    if row is None:
        return "in flight when the runner died" if case.key in contents.deaths else "never done"
    if row.status == "skipped":
        return "never done"
    if row.status in settings.retry:
        return f"its status was {row.status}"
    if why := difference(fingerprints.of(case), row.fingerprint, settings.ignore):
        return why
    known = devices and row.device and case.device != "cpu"
    if known and "device" not in settings.ignore and devices and row.device not in devices:
        return f"it ran on {row.device}, and this is {' and '.join(sorted(devices))}"
    return ""


def _lost(case: CaseRecord, deaths: int, fingerprints: Fingerprints) -> Row:
    times = {2: "twice", 3: "three times"}.get(deaths, f"{deaths} times")
    reason = f"in flight {times} when the runner itself died; not tried again: resume.retry=[lost]"
    return Row(case=case, status="lost", reason=reason, phase="plan", fingerprint=fingerprints.of(case))


def sentences(folder: Path, work: Work, torn: int) -> list[str]:
    """What the user is told before anything is run."""
    total = len(work.kept) + len(work.again) + len(work.lost)
    told = [f"resume: {folder}: {len(work.kept)} of {total} cases kept, {len(work.again)} to run"]
    told += [f"  {count} to run: {why}" for why, count in Counter(work.again.values()).most_common()]
    if work.lost:
        told.append(f"  {len(work.lost)} lost: {work.lost[0].reason}")
    if work.outside:
        told.append(f"  {work.outside} more in the folder, not of this grid: they stay in its files")
    if torn:
        told.append(f"  {torn} torn record{'s' if torn > 1 else ''} in the journal, left by a kill: skipped")
    return told

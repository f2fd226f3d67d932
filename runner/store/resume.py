"""Which rows of an earlier session still count, and why the other cases run again."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.plan import Resume
from ..records.row import Row
from .fingerprint import Fingerprints, differences
from .journal import Contents

MOVED = {"device", "versions"}  # what changes when a run is resumed on another machine
MOST_DEATHS = 2  # deaths of the runner, a machine or a task with the same case in flight: the case may be the cause


@dataclass(frozen=True)
class Remaining:
    """What is left to do of a grid. Cases are named by their keys."""

    kept: dict[str, Row] = field(default_factory=dict)  # rows that count
    again: dict[str, str] = field(default_factory=dict)  # cases to run, with the reason
    lost: tuple[Row, ...] = ()  # rows of cases that are not tried again
    outside: int = 0  # cases of the folder that are not in the grid


def remaining(
    cases: Sequence[CaseRecord],
    contents: Contents,
    settings: Resume,
    fingerprints: Fingerprints,
    devices: Collection[str] | None = None,
) -> Remaining:
    """Return the part of ``cases`` that is left after the sessions whose journal has ``contents``.

    ``devices`` are the names of the GPUs that will be used, or None if they are unknown.

    Raises:
        BadInput: more rows are of another device or of other versions than there are rows that count. Measured again
            here, they would leave the table.

    """
    kept, again, lost = {}, {}, []
    moved: list[dict[str, str]] = []  # why rows of another device or of other versions do not count
    for case in cases:
        row, deaths = contents.rows.get(case.key), contents.deaths.get(case.key, 0)
        if row is None or row.status == "skipped":
            reason = "in flight when the runner died" if deaths else "never done"
        elif row.status in settings.retry:
            reason = f"its status was {row.status}"
        else:
            changes = _changes(row, fingerprints.now(row), settings.ignore, devices)
            reason = next(iter(changes.values()), "")
            moved += [changes] if changes.keys() & MOVED else []
        if row is not None and not reason:
            kept[case.key] = row
        elif deaths >= MOST_DEATHS and "lost" not in settings.retry:
            times = "twice" if deaths == MOST_DEATHS else f"{deaths} times"
            lost.append(lost_row(case, f"in flight {times} when the runner itself died"))
        else:
            again[case.key] = reason
    if len(moved) > len(kept):
        ignore = {*settings.ignore, *MOVED, *(part for changes in moved for part in changes if part == "measure")}
        raise BadInput(
            f"resume={settings.of}: {len(moved)} rows would be measured again, and {len(kept)} kept: "
            f"{next(why for part, why in moved[0].items() if part in MOVED)}; to keep these rows: "
            f"resume.ignore={','.join(sorted(ignore))}; to measure here: a new run, without resume"
        )
    outside = contents.rows.keys() - {case.key for case in cases}
    return Remaining(kept, again, tuple(lost), len(outside))


def _changes(
    row: Row, fingerprint: Mapping[str, str], ignore: Sequence[str], devices: Collection[str] | None
) -> dict[str, str]:
    """Return the reasons why ``row`` does not count, by the part that changed, without parts to ``ignore``."""
    found = {"device": other_device(row, devices), **differences(fingerprint, row.fingerprint)}
    return {part: why for part, why in found.items() if why and part not in ignore}


def other_device(row: Row, devices: Collection[str] | None) -> str:
    """Return the reason why ``row`` is not valid for ``devices``; "" if it is, or if that is unknown."""
    if not devices or not row.device or row.case.settings.device == "cpu" or row.device in devices:
        return ""
    return f"it ran on {row.device}, and this is {' and '.join(sorted(devices))}"


def lost_row(case: CaseRecord, reason: str) -> Row:
    """Return the row of a case that is given up, since it may have caused the deaths that ``reason`` names."""
    return Row(case=case, status="lost", reason=f"{reason}; to try again: resume.retry=[lost]", phase="plan")


def resume_messages(folder: Path, work: Remaining, unreadable: int) -> list[str]:
    """Return the lines that tell the user what is kept and what runs again."""
    total = len(work.kept) + len(work.again) + len(work.lost)
    lines = [f"resume: {folder}: {len(work.kept)} of {total} cases kept, {len(work.again)} to run"]
    lines += [f"  {count} to run: {reason}" for reason, count in Counter(work.again.values()).most_common()]
    if work.lost:
        lines.append(f"  {len(work.lost)} lost: {work.lost[0].reason}")
    if work.outside:
        lines.append(f"  {work.outside} more in the folder, not of this grid: they stay in its files")
    if unreadable:
        lines.append(f"  {unreadable} unreadable in the journal, damaged or cut off: skipped")
    return lines

"""Run the same grid with and without faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import digits, table, word
from benchmarks.runner.faults.grids import (
    LIMIT,
    STATUS,
    Part,
    ends,
    grid,
    journal_folder,
    mixture,
    not_as,
    size,
    start,
    user_file,
)
from runner.records.row import Row
from runner.store import journal

MIX_BAR = 1.3
LONGER = ["measure.benchmark.max_s=0.06", "measure.benchmark.samples=1000"]  # a tenth of a case's time


def mix(folder: Path, cases: int, kills: int) -> Part:
    """Run the grid without faults, with them, and without them again."""
    injected = mixture(cases)
    file = user_file(folder, injected)
    ran = []
    for turn, name in enumerate(("clean", "mixed", "clean")):
        place = folder / str(turn)
        ended = ends(start([*grid(file, name, cases), *LONGER], place))
        if ended.code != (name == "mixed"):
            raise RuntimeError(f"{name} ended with code {ended.code}:\n{ended.err}")
        ran.append((ended.wall_s, journal.read_rows(journal_folder(place))))
    (before_s, clean), (mixed_s, mixed), (after_s, _) = ran
    if {row.status for row in clean} != {"ok"}:
        raise RuntimeError(f"without faults: {Counter(row.status for row in clean)}")
    return mix_part(injected, mixed, cases, (before_s, after_s), mixed_s)


def mix_part(injected: Mapping[int, str], rows: Sequence[Row], cases: int, clean_s: Sequence[float], s: float) -> Part:
    """Return the bars and the table. The grid with faults took ``s`` seconds, and those without ``clean_s``."""
    right = cases - len(not_as(injected, rows, cases))
    hangs_s = LIMIT * sum(fault == "hang" for fault in injected.values())
    ratio = (s - hangs_s) / (sum(clean_s) / len(clean_s))
    lines = []
    for fault, status in STATUS.items():
        sizes = [one for one, name in injected.items() if name == fault]
        some = [row for row in rows if size(row) in sizes]
        again = sum(int(row.metrics.get("attempt", 1)) > 1 for row in some)
        lines.append((fault, len(sizes), status, sum(row.status == status for row in some), again))
    without = ", ".join(digits(one) for one in clean_s)
    a_case_s = sum(clean_s) / len(clean_s) / cases
    lasting = sum(fault != "wrong" for fault in injected.values())
    each_ms = 1e3 * (s - hangs_s - a_case_s * (cases - lasting)) / lasting
    return Part(
        f"{cases} cases, {len(injected)} of them with a fault",
        [
            (f"{cases} rows, each with the status of its fault", f"{right} of {len(rows)}", word(right == cases)),
            (f"{MIX_BAR} x the time without faults, and the limits of hangs", digits(ratio), word(ratio <= MIX_BAR)),
        ],
        table(["injected", "cases", "status", "so", "in a fresh process once more"], lines)
        + f"\n\nWithout faults {without} s, before and after; with them {digits(s)} s, of which {digits(hangs_s)} s "
        f"are limits of hangs: {digits(1e3 * a_case_s)} ms a case, and {digits(each_ms)} ms for one that is not timed.",
    )

"""Kill the runner at random moments, and resume it each time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import digits, word
from benchmarks.runner.faults.grids import (
    GONE_BAR_S,
    Part,
    ends,
    grid,
    journal_folder,
    mixture,
    not_as,
    records,
    resumed,
    start,
    until_gone,
    user_file,
)
from runner.records.row import Row
from runner.store import journal

LATEST_KILL_S = 4.0  # after the start of the command; about half of the kills come before its first case
LATEST_OF_MANY_S = 40.0
MANY = 100  # the part "many" has this many times the cases of the others
NOTHING = ["workload.rows=1", "measure.benchmark.max_s=0.001", "measure.benchmark.warmup_s=0"]


def killed(folder: Path, cases: int, kills: int) -> Part:
    """Kill and resume the grid with faults."""
    injected = mixture(cases)
    words = grid(user_file(folder, injected), "mixed", cases)
    seen = kill_and_resume(words, folder / "out", kills, LATEST_KILL_S, code=1)
    return kills_part("with faults", injected, cases, seen, LATEST_KILL_S)


def many(folder: Path, cases: int, kills: int) -> Part:
    """Kill and resume a grid of a hundred times as many tiny cases without faults."""
    words = [*grid(user_file(folder, {}), "clean", MANY * cases), *NOTHING]
    seen = kill_and_resume(words, folder / "out", kills, LATEST_OF_MANY_S, code=0)
    return kills_part("of next to nothing", {}, MANY * cases, seen, LATEST_OF_MANY_S)


def kill_and_resume(words: Sequence[str], place: Path, kills: int, latest_s: float, code: int) -> Kills:
    """Kill a grid's parent and resume it, ``kills`` times. The last command must end with ``code``."""
    draw = random.Random(1)
    gone_s: list[float] = []
    left: list[str] = []
    caught, deaths = 0, dict[str, int]()
    kept: set[str] = set()  # keys of rows that existed after a kill
    for turn in range(kills):
        process = start(resumed(words, place), place)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.1, latest_s))
            break  # all done
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        seconds, remaining = until_gone(place)
        gone_s.append(seconds)
        left += remaining
        if there := journal_folder(place):
            contents = journal.load(there)
            kept |= contents.rows.keys()
            caught += sum(contents.deaths.values()) > sum(deaths.get(key, 0) for key in contents.deaths)
            deaths = contents.deaths
        print(f"  kill {turn + 1} of {kills}: {len(kept)} rows", flush=True)
    ended = ends(start(resumed(words, place), place))
    if ended.code != code:
        raise RuntimeError(f"the last command ended with code {ended.code}:\n{ended.err}")
    there = journal_folder(place)
    return Kills(gone_s, left, caught, kept, records(there), journal.read_rows(there))


@dataclass(frozen=True)
class Kills:
    """What the kills have cost."""

    gone_s: Sequence[float]  # after each kill, until the last process of the command was gone
    left: Sequence[str]  # processes that were not gone a second after a kill
    caught: int  # kills with a case in flight
    kept: Collection[str]  # keys of the rows that existed after a kill
    records: Sequence[str]  # keys of all row records at the end
    rows: Sequence[Row]  # at the end


def kills_part(kind: str, injected: Mapping[int, str], cases: int, seen: Kills, latest_s: float) -> Part:
    """Return the bars and the text."""
    lost = len(set(seen.kept) - {row.case.key for row in seen.rows}) + cases - len(seen.rows)
    twice = len(seen.records) - len(set(seen.records))
    wrong = len(not_as(injected, seen.rows, cases))
    ms = sorted(1e3 * one for one in seen.gone_s)
    after = f"after {len(ms)} kills: {cases:,} cases {kind}"
    return Part(
        f"The runner killed {len(ms)} times and resumed: {cases:,} cases {kind}",
        [
            (f"no row lost {after}", str(lost), word(not lost)),
            (f"no case has two rows {after}", str(twice), word(not twice)),
            ("each status as injected", f"{wrong} others", word(not wrong)),
            (f"no process left {GONE_BAR_S:g} s after a kill", str(len(seen.left)), word(not seen.left)),
        ],
        f"Killed with SIGKILL at moments drawn evenly from the first {latest_s:g} s of each command, "
        f"{seen.caught} times with a case in flight. The last of its processes was gone {digits(median(ms))} ms after "
        f"the kill, median, and {digits(ms[-1])} ms at most. `resume.retry=[lost]`: a case that was in flight "
        "twice is run again here." + "".join(f"\nLeft {GONE_BAR_S:g} s after it: {name}." for name in seen.left),
    )

"""The disk fails in the middle of a grid: the journal cannot grow, no file can be written, or the folder is removed."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import LIMIT_S, table, word
from benchmarks.runner.faults.grids import Part, ends, grid, journal_folder, records, sizes, start, user_file
from runner.store import journal

BREAK_AT = 0.4  # share of the cases that have a row when the disk fails
DISK_CASES = 300
GONE = "nothing to resume"  # the folder has been removed: its rows were printed


@dataclass(frozen=True)
class Broken:
    """What is left of a grid whose disk failed in the middle."""

    begun: Sequence[int]  # sizes of the cases that ran, in their order: the function writes them down
    found: Mapping[str, Collection[int]]  # sizes that have a row, by the place where the row is
    code: int
    went_on: str  # how a resume ended

    @property
    def lost(self) -> int:
        """Number of cases that were done, since another one had begun, and that have no row anywhere."""
        return len(set(self.begun[:-1]) - {one for some in self.found.values() for one in some})


def disk(folder: Path, cases: int, kills: int) -> Part:
    """Run a grid for each way in which the disk fails."""
    ways: dict[str, Callable[[int, Path], None]] = {
        "full: the journal may not grow": lambda pid, there: limit(pid, (there / journal.NAME).stat().st_size + 300),
        "no room anywhere": lambda pid, there: limit(pid, 0),
        "folder removed": lambda pid, there: shutil.rmtree(there),
    }
    return disk_part({name: broken(folder / str(place), act) for place, (name, act) in enumerate(ways.items())})


def limit(pid: int, size: int) -> None:
    """Limit the files of process ``pid`` to ``size`` bytes: the next write is cut off, and later ones fail."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def broken(folder: Path, act: Callable[[int, Path], None]) -> Broken:
    """Start a grid, call ``act`` on its process and folder in the middle, and resume it after its end."""
    place, counter, spare = folder / "out", folder / "counter", folder / "tmp"
    spare.mkdir(parents=True)
    file = user_file(folder, {}, counter)
    words = grid(file, "counted", DISK_CASES)
    process = start(words, place, {"TMPDIR": str(spare)})
    deadline, there = time.monotonic() + LIMIT_S, None
    while there is None or len(records(there)) < BREAK_AT * DISK_CASES:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the grid ended too early or took too long:\n{process.communicate()}")
        time.sleep(0.01)
        there = journal_folder(place)
    act(process.pid, there)
    ended = ends(process)
    told = [json.loads(line) for line in ended.err.splitlines() if line.startswith('{"record":"row"')]
    found = {
        "the journal": sizes(there),
        "stderr": [record["case"]["workload"]["cols"] for record in told],
    }
    begun = [int(line) for line in counter.read_text(encoding="utf-8").split()]
    return Broken(begun, found, ended.code, goes_on(words, there, place) if there.exists() else GONE)


def goes_on(words: Sequence[str], folder: Path, place: Path) -> str:
    """Return how ``resume=<folder>`` ends."""
    ended = ends(start([*words, f"resume={folder}"], place))
    rows = Counter(row.status for row in journal.read_rows(folder))
    return f"{rows['ok']} ok" if ended.code == 0 else f"code {ended.code}, {dict(rows)}"


def disk_part(found: Mapping[str, Broken]) -> Part:
    """Return the bars and the table."""
    lines = [
        (name, len(one.begun), *(len(some) or "" for some in one.found.values()), one.lost, one.code, one.went_on)
        for name, one in found.items()
    ]
    lost = sum(one.lost for one in found.values())
    quiet = sum(one.code == 0 for one in found.values())
    left = [one for one in found.values() if one.went_on != GONE]
    ended = sum(one.went_on == f"{DISK_CASES} ok" for one in left)
    places = next(iter(found.values())).found
    return Part(
        "The disk, in the middle of a grid",
        [
            (f"nothing that was measured is lost: {len(found)} ways", f"{lost} rows", word(not lost)),
            ("the exit code tells", f"{quiet} of {len(found)} silent", word(not quiet)),
            ("a folder that is left can be resumed to its end", f"{ended} of {len(left)}", word(ended == len(left))),
        ],
        table(
            ["", "begun", *(f"rows in {name}" for name in places), "lost", "exit code", "resumed to its end"],
            lines,
        )
        + f"\n\n{DISK_CASES} cases. Begun: the function writes it down; the last of them was in flight.",
    )

"""Kill random ranks at random moments, and see whether each case has one row and nothing is left behind.

    python -m benchmarks.runner.kill_ranks [--device cpu|cuda] [--kills 20] [--ranks 2] [--write]

The command runs all_reduce at many sizes. From outside, a random rank gets SIGKILL at a random moment. Bars: one row
for each case, of which a failed one names the rank; all ranks of the case have ended 5 s later; and when the command
has ended, none of its processes is left, and no lock of a GPU is held.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import ROOT, add_process_options, load_average, publish_study, table, word
from runner.device import lock, processes
from runner.records.row import Row
from runner.store import journal

ENDED_S = 5.0
LATEST_S = 1.5  # of a kill, after a case has started: it takes about as long
CASES = 3  # of a command for each kill, which may come some cases after the one before
MARK = "KILL_RANKS"  # variable of the command's processes
SEED = 1


@dataclass
class Seen:
    """What a series of kills has shown."""

    ended_s: float = ENDED_S  # after a kill, all ranks of the case must have ended
    kills: int = 0
    longest_s: float = 0.0  # from a kill until all ranks of the case had ended
    late: int = 0  # kills after which that took more than ``ended_s``
    cases: int = 0
    rows: list[Row] = field(default_factory=list)
    left: int = 0  # processes after the end of a command
    held: int = 0  # locks after the end of a command
    printed: str = ""  # the end of what commands printed that lack rows

    @property
    def unnamed(self) -> list[Row]:
        """Failed rows that do not name the rank that was killed."""
        return [row for row in self.rows if row.failed and not row.reason.startswith(("rank 0 was", "rank 1 was"))]

    @property
    def bars(self) -> dict[str, bool]:
        """The bars, by their words."""
        return {
            "one row for each case": len(self.rows) == len({row.case.key for row in self.rows}) == self.cases,
            "a failed row names the rank": not self.unnamed,
            f"all ranks have ended after {self.ended_s:g} s": not self.late,
            "no process is left": not self.left,
            "no lock is held": not self.held,
        }


def kill(seen: Seen, kills: int, device: str, ranks: int, chance: random.Random) -> None:
    """Run one command, and kill ranks of it until there were ``kills``."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    cases = range(seen.cases, seen.cases + CASES * (kills - seen.kills + 2))  # the last kill takes some too
    sizes = ",".join(str(2**16 + 4 * ranks * case) for case in cases)
    with tempfile.TemporaryDirectory() as output:
        words = [
            "workload=all_reduce",
            f"workload.ranks={ranks}",
            f"workload.bytes={sizes}",
            "impl=torch",
            "quick=true",
        ]
        command = [sys.executable, "-m", "runner", *words, f"device={device}", f"output_dir={output}", "-m"]
        environment = {**os.environ, MARK: mark.partition("=")[2]}
        with (
            open(Path(output) / "printed.txt", "w+b") as printed,
            subprocess.Popen(command, cwd=ROOT, stdout=printed, stderr=printed, env=environment) as run,
        ):
            before = 0
            while run.poll() is None and seen.kills < kills:
                if _started(Path(output)) > before and len(pids := _ranks(run.pid)) == ranks:
                    time.sleep(chance.uniform(0, LATEST_S))
                    _kill_one(seen, pids, chance)
                    before = _started(Path(output))  # the next kill is in a case too, not in the start of its processes
                time.sleep(0.02)
            run.wait()
        rows = [row for folder in Path(output).glob("*/*/") for row in journal.read_rows(folder)]
        if len(rows) != len(cases):
            seen.printed += (Path(output) / "printed.txt").read_text(errors="replace")[-2000:]
        seen.rows += rows
    seen.cases += len(cases)
    time.sleep(ENDED_S)
    seen.left += sum(mark.encode() in variables for variables in _environments())
    seen.held += _held_locks()


def _kill_one(seen: Seen, pids: list[int], chance: random.Random) -> None:
    """Kill one of the ranks ``pids``, and watch until all have ended."""
    with suppress(ProcessLookupError):  # the command is done
        os.kill(chance.choice(pids), signal.SIGKILL)
        seen.kills += 1
        began = time.monotonic()
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < began + 2 * seen.ended_s:
            time.sleep(0.01)
        seen.longest_s = max(seen.longest_s, time.monotonic() - began)
        seen.late += time.monotonic() - began > seen.ended_s


def _started(output: Path) -> int:
    """Return how often a case of the run in ``output`` has started."""
    return sum(path.read_bytes().count(b'"record":"start"') for path in output.glob("*/*/rows.jsonl"))


def _ranks(pid: int) -> list[int]:
    """Return the processes that the zygote of the command ``pid`` has forked."""
    return [rank for child in processes.children(pid) for rank in processes.children(child)]


def _environments() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return found


def _held_locks() -> int:
    """Return the number of locks of GPUs that a process holds."""
    held = 0
    for path in lock.folder().glob("GPU-*.lock"):
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held += 1
    return held


def series(kills: int, device: str, ranks: int = 2, seed: int = SEED, ended_s: float = ENDED_S) -> Seen:
    """Return what ``kills`` kills show."""
    seen, chance = Seen(ended_s), random.Random(seed)
    while seen.kills < kills:
        kill(seen, kills, device, ranks, chance)
    return seen


def main() -> None:
    """Print the page. The exit code is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    add_process_options(parser, 1)
    options = parser.parse_args()
    load = load_average()
    seen = series(options.kills, options.device, options.ranks)
    outcomes = Counter(row.reason if row.failed else row.status for row in seen.rows)
    body = [
        f"{seen.kills} kills of a random one of {options.ranks} ranks during {seen.cases} cases; all ranks of a case "
        f"had ended at most {seen.longest_s:.2f} s after a kill.\n",
        table(["bar", "kept"], [(bar, word(kept)) for bar, kept in seen.bars.items()]),
        "",
        table(["rows", "count"], sorted(outcomes.items())),
    ]
    publish_study("kill_ranks", "Killed ranks", "\n".join(body), options, load)
    sys.exit(not all(seen.bars.values()))


if __name__ == "__main__":
    main()

"""What a grid loses when its cases, the runner itself, or the disk fail: faults are injected, and losses counted.

    python -m benchmarks.faults [--cases 1000] [--kills 20] [--parts mix overhead kills lock disk] [--write]
    python -m benchmarks.faults --parts many    # half an hour

All but the lock goes through the real command line, since what is promised is a command's: its rows, its exit code,
what it leaves behind. The cases are a user's functions on tiny inputs, so that a fault's cost shows beside them: of
about 40 ms where time is compared, else of about 15. The lock is taken by processes of this script, whose workers
outlive their parent for a while, as those on a GPU do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.common import LIMIT_S, ROOT, digits, load_average, page, publish, run, table
from benchmarks.runner_overhead import CASES, GRID, hydra_app, hydra_multirun, one_process_per_case, outside_ms, wall_s
from runner import journal, run_dir
from runner.launch.lock import VARIABLE
from runner.row import Row

MIX_BAR, CASE_BAR_MS, GONE_BAR_S = 1.3, 2.0, 1.0
SHARES = {"segfault": 0.05, "hang": 0.02, "oom": 0.03, "wrong": 0.02, "build": 0.01}
STATUS = {"segfault": "crashed", "hang": "timeout", "oom": "oom", "wrong": "wrong", "build": "build_failed"}
LIMIT = 0.5  # seconds of launcher.build_limit_s
LATEST_KILL_S = 4.0  # after the command's start: about half of the kills come before its first case
LATEST_OF_MANY_S = 40.0
MANY = 100  # times the cases of the other parts, in the one of that name
BREAK_AT = 0.4  # of the cases have their row when the disk breaks
DISK_CASES = 300
LINGER_S = 0.3  # that a worker of a killed holder goes on using its GPU
MARK = "FAULTS_BENCHMARK_MARK"  # in the environment of a command, and so of everything it starts

LONGER = ["measure.benchmark.max_s=0.06", "measure.benchmark.samples=1000"]  # still a tenth of what a case takes
QUICK = ["measure.benchmark.samples=20", "measure.benchmark.warmup_s=0.001", "measure.benchmark.rounds=0"]
QUICK += ["measure.benchmark.max_s=0.02", f"launcher.build_limit_s={LIMIT}"]
NOTHING = ["measure.benchmark.max_s=0.001", "measure.benchmark.warmup_s=0"]
USER = """
import ctypes, os, torch

def clean(x):
    return torch.nn.functional.gelu(x, approximate="tanh")

def mixed(x):
    fault = FAULTS.get(x.shape[1])
    if fault == "segfault": ctypes.string_at(0)
    if fault == "hang":
        while True: pass
    if fault == "oom": raise MemoryError("injected")
    if fault == "build": raise ImportError("injected")
    return clean(x) + (fault == "wrong")

begun = False

def witnessed(x):
    global begun
    if not begun:  # once a case: each loads this file anew
        begun = True
        with open(WITNESS, "a") as file: file.write(f"{x.shape[1]}\\n")
    return clean(x)
"""

HOLDER = """
import subprocess, sys, time
from runner.launch.lock import GpuLock
beats, inherits, worker = sys.argv[1:]
lock = GpuLock("GPU-of-no-machine")
lock.acquire(lambda text: print("waits", flush=True), poll_s=0.05)
pass_fds = [lock.fileno()] if inherits == "True" else []
using = subprocess.Popen([sys.executable, "-c", worker, beats], stdin=subprocess.PIPE, pass_fds=pass_fds)
while not using.poll():
    try:
        beating = open(beats).read().split()
    except FileNotFoundError:
        beating = []
    if str(using.pid) in beating: break
    time.sleep(0.002)
print("holds", flush=True)
using.wait()
"""
WORKER = f"""
import os, select, sys, time
file, ends = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), None
while ends is None or time.monotonic() < ends:
    os.write(file, b"%d %d\\n" % (os.getpid(), time.monotonic_ns()))
    if ends is None and select.select([0], [], [], 0.001)[0]: ends = time.monotonic() + {LINGER_S}
    if ends: time.sleep(0.001)
"""

Bar = tuple[str, str, str]


@dataclass(frozen=True)
class Part:
    """What one part has found."""

    title: str
    bars: Sequence[Bar]
    text: str


@dataclass(frozen=True)
class Ended:
    """A command that has ended by itself."""

    code: int
    wall_s: float
    err: str


def main() -> None:
    """Runs all, prints and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[name for name in PARTS if name != "many"])
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        folder = Path(scratch)
        facts = run([*GRID[:3], "workload.cols=1", *GRID[4:]], folder / "first").facts  # and the disk is warm
        parts = []
        for name in options.parts:
            started = time.perf_counter()
            (folder / name).mkdir()
            parts.append(PARTS[name](folder / name, options.cases, options.kills))
            print(f"{name}: {time.perf_counter() - started:.0f} s", *parts[-1].bars, sep="\n  ", flush=True)
    publish("faults", page("What faults cost", report(parts), facts, load), facts, options.write)


def report(parts: Sequence[Part]) -> str:
    """All bars, and then each part."""
    bars = "## Bars\n\n" + table(["bar", "seen", ""], [bar for part in parts for bar in part.bars])
    return "\n\n".join([bars, *(f"## {part.title}\n\n{part.text}" for part in parts)])


# --- the same grid with and without faults ---


def mix(folder: Path, cases: int, kills: int) -> Part:
    """The grid without faults, with them, and without again."""
    injected = mixture(cases)
    file = user_file(folder, injected)
    ran = []
    for turn, name in enumerate(("clean", "mixed", "clean")):
        place = folder / str(turn)
        ended = ends(start([*grid(file, name, cases), *LONGER], place))
        if ended.code != (name == "mixed"):
            raise RuntimeError(f"{name} ended with code {ended.code}:\n{ended.err}")
        ran.append((ended.wall_s, journal.read(journal_folder(place))))
    (before_s, clean), (mixed_s, mixed), (after_s, _) = ran
    if {row.status for row in clean} != {"ok"}:
        raise RuntimeError(f"without faults: {Counter(row.status for row in clean)}")
    return mix_part(injected, mixed, cases, (before_s, after_s), mixed_s)


def mix_part(injected: Mapping[int, str], rows: Sequence[Row], cases: int, clean_s: Sequence[float], s: float) -> Part:
    """What follows: ``rows`` of the grid with faults took ``s``, and those without ``clean_s``."""
    right = cases - len(not_as(injected, rows, cases))
    hangs_s = LIMIT * sum(fault == "hang" for fault in injected.values())
    ratio = (s - hangs_s) / (sum(clean_s) / len(clean_s))
    lines = []
    for fault, status in STATUS.items():
        places = [place for place, name in injected.items() if name == fault]
        some = [row for row in rows if size(row) in places]
        again = sum(int(row.metrics.get("attempt", 1)) > 1 for row in some)
        lines.append((fault, len(places), status, sum(row.status == status for row in some), again))
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


def mixture(cases: int) -> dict[int, str]:
    """Which sizes of 1 to ``cases`` have which fault; always the same."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * cases))]
    return dict(zip(random.Random(0).sample(range(1, cases + 1), len(kinds)), kinds, strict=True))


def not_as(injected: Mapping[int, str], rows: Iterable[Row], cases: int) -> list[int]:
    """Sizes without the one row they should have."""
    seen: dict[int, list[str]] = {}
    for row in rows:
        seen.setdefault(size(row), []).append(row.status)
    return [one for one in range(1, cases + 1) if seen.get(one) != [STATUS.get(injected.get(one, ""), "ok")]]


# --- what a case costs ---


def overhead(folder: Path, cases: int, kills: int) -> Part:
    """A grid of next to nothing, beside Hydra's launcher and a process per case."""
    first, word_of_size, *rest = GRID[:3], f"workload.cols=range(1,{cases + 1})", *GRID[4:]
    ours = run([*first, word_of_size, *rest], folder / "ours")
    single = run([*first, "workload.cols=1", *rest], folder / "single")
    mine = outside_ms(ours)
    fixed = single.wall_s - single.startup_s - wall_s(single)
    whole = ours.wall_s - ours.startup_s - wall_s(ours)
    more = (whole - fixed) * 1e3 / cases
    hydra, process = hydra_multirun(hydra_app(folder / "app")), one_process_per_case()
    ways = [
        (f"this runner, {cases} cases", mine, 1.0),
        (f"Hydra's multirun, {CASES} cases", hydra.overhead_ms, hydra.overhead_ms / mine),
        ("a process per case", process.overhead_ms, process.overhead_ms / mine),
    ]
    own = [
        ("command, whole", ours.wall_s * 1e3, ours.wall_s * 1e3 / cases),
        ("worker's start-up", ours.startup_s * 1e3, ours.startup_s * 1e3 / cases),
        ("phases of the cases", wall_s(ours) * 1e3, wall_s(ours) * 1e3 / cases),
        ("outside of both", whole * 1e3, mine),
        ("of which a grid of one case has too", fixed * 1e3, fixed * 1e3 / cases),
        ("of which grows with the cases", (whole - fixed) * 1e3, more),
    ]
    return Part(
        "What a case costs",
        [
            (
                f"{CASE_BAR_MS:g} ms a case outside its phases, once all is up",
                f"{digits(more)} ms",
                word(more <= CASE_BAR_MS),
            )
        ],
        table(["way", "overhead, ms a case", "/ ours"], ways)
        + "\n\nOurs is (wall - start-up of the worker - sum of `wall_s`) / cases: Python, composing, giving out, the "
        "journal, tidying, the tables. The others' is all outside of warm-up and sampling; they check and keep nothing."
        "\n\n" + table(["ours", "ms", "ms a case"], own),
    )


# --- the runner killed ---


def killed(folder: Path, cases: int, kills: int) -> Part:
    """The mixed grid."""
    injected = mixture(cases)
    words = grid(user_file(folder, injected), "mixed", cases)
    seen = kill_and_resume(words, folder / "out", kills, LATEST_KILL_S, code=1)
    return kills_part("with faults", injected, cases, seen, LATEST_KILL_S)


def many(folder: Path, cases: int, kills: int) -> Part:
    """A hundred times as many cases, of next to nothing and without faults."""
    words = [*grid(user_file(folder, {}), "clean", MANY * cases), *NOTHING]
    seen = kill_and_resume(words, folder / "out", kills, LATEST_OF_MANY_S, code=0)
    return kills_part("of next to nothing", {}, MANY * cases, seen, LATEST_OF_MANY_S)


def kill_and_resume(words: Sequence[str], place: Path, kills: int, latest_s: float, code: int) -> Kills:
    """A grid's parent killed again and again and resumed each time; at last left alone, it is to end with ``code``."""
    draw = random.Random(1)
    gone_s: list[float] = []
    left: list[str] = []
    caught, deaths = 0, dict[str, int]()
    kept: set[str] = set()  # keys of rows that were there after some kill
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
        raise RuntimeError(f"the last one ended with code {ended.code}:\n{ended.err}")
    there = journal_folder(place)
    return Kills(gone_s, left, caught, kept, records(there), journal.read(there))


@dataclass(frozen=True)
class Kills:
    """What was seen of them."""

    gone_s: Sequence[float]  # after each, until the last process of the command was gone
    left: Sequence[str]  # processes that were not gone after a second, of all kills
    caught: int  # kills with a case in flight
    kept: Collection[str]  # keys of the rows that were there after some kill
    records: Sequence[str]  # keys of all records of rows, in the end
    rows: Sequence[Row]  # in the end


def kills_part(kind: str, injected: Mapping[int, str], cases: int, seen: Kills, latest_s: float) -> Part:
    """What follows."""
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


# --- two sweeps and one lock ---


def locked(folder: Path, cases: int, kills: int) -> Part:
    """Holders killed while the next one waits; and the same where the worker does not hold the lock too."""
    return lock_part(*(handovers(folder / str(inherits), kills, inherits=inherits) for inherits in (True, False)))


@dataclass(frozen=True)
class Handovers:
    """From each holder to the next."""

    seconds: Sequence[float]  # from the kill until the next one's worker runs
    overlaps: int  # workers that began before another had ended


def handovers(folder: Path, kills: int, *, inherits: bool) -> Handovers:
    """``kills`` holders, each killed at a random moment. ``inherits``: whether their workers hold the lock."""
    folder.mkdir()
    draw, beats, seconds = random.Random(2), folder / "beats", []

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(beats), str(inherits), WORKER],
            cwd=ROOT,
            env=os.environ | {VARIABLE: str(folder)},
            stdout=subprocess.PIPE,
            text=True,
        )

    holder = begin()
    hears(holder, "holds")
    for _ in range(kills):
        waiter = begin()
        hears(waiter, "waits")
        time.sleep(draw.uniform(0, 0.1))
        os.kill(holder.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        hears(waiter, "holds")
        seconds.append(time.monotonic() - killed_at)
        holder.communicate()
        holder = waiter
    holder.kill()
    holder.communicate()
    time.sleep(2 * LINGER_S)
    return Handovers(seconds, overlaps(beats.read_text(encoding="utf-8")))


def hears(process: subprocess.Popen[str], wanted: str) -> None:
    """Wait until ``process`` says ``wanted``."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    raise RuntimeError(f"it ended with code {process.wait()} and never said {wanted}")


def overlaps(beats: str) -> int:
    """Processes whose first beat came before the last one of another that had begun earlier; a line a beat."""
    spans: dict[str, list[int]] = {}
    for line in beats.splitlines():
        pid, moment = line.split()
        spans.setdefault(pid, []).append(int(moment))
    ordered = sorted((min(some), max(some)) for some in spans.values())
    return sum(later[0] < earlier[1] for earlier, later in pairwise(ordered))


def lock_part(shared: Handovers, alone: Handovers) -> Part:
    """What follows, of workers that hold the lock and of those that do not."""
    count = len(shared.seconds)
    lines = [
        (name, len(one.seconds), one.overlaps, 1e3 * median(one.seconds), 1e3 * max(one.seconds))
        for name, one in {"held by the worker too": shared, "by its parent alone": alone}.items()
    ]
    return Part(
        f"One GPU, two sweeps: the holder killed {count} times",
        [(f"no two at once, {count} holders killed", f"{shared.overlaps} overlaps", word(not shared.overlaps))],
        table(["lock", "kills", "overlaps", "ms until the next runs, median", "most"], lines)
        + f"\n\nA worker goes on for {LINGER_S:g} s after its parent's death. The second line is there to show that "
        "overlaps are seen.",
    )


# --- the disk ---


@dataclass(frozen=True)
class Broken:
    """A grid whose disk broke in the middle."""

    begun: Sequence[int]  # sizes of the cases that a worker has called, in their order, by their own account
    found: Mapping[str, Collection[int]]  # by place, the sizes that have a row there
    code: int
    went_on: str  # what became of a resume

    @property
    def lost(self) -> int:
        """Cases that were done, for another one had begun, and have no row anywhere."""
        return len(set(self.begun[:-1]) - {one for some in self.found.values() for one in some})


def disk(folder: Path, cases: int, kills: int) -> Part:
    """A full disk, one without any room, and a folder that is gone."""
    ways: dict[str, Callable[[int, Path], None]] = {
        "full: the journal may not grow": lambda pid, there: limit(pid, (there / journal.NAME).stat().st_size + 300),
        "no room anywhere": lambda pid, there: limit(pid, 0),
        "folder removed": lambda pid, there: shutil.rmtree(there),
    }
    return disk_part({name: broken(folder / str(place), act) for place, (name, act) in enumerate(ways.items())})


def limit(pid: int, size: int) -> None:
    """Files that ``pid`` alone writes may be of ``size`` bytes: the next write is cut off, and the others fail."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def broken(folder: Path, act: Callable[[int, Path], None]) -> Broken:
    """``act`` on the process and the folder of a run in its middle, and what is left; then it is resumed."""
    place, witness, spare = folder / "out", folder / "witness", folder / "tmp"
    spare.mkdir(parents=True)
    file = user_file(folder, {}, witness)
    words = grid(file, "witnessed", DISK_CASES)
    process = start(words, place, {"TMPDIR": str(spare)})
    deadline, there = time.monotonic() + LIMIT_S, None
    while there is None or len(records(there)) < BREAK_AT * DISK_CASES:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it never came so far:\n{process.communicate()}")
        time.sleep(0.01)
        there = journal_folder(place)
    act(process.pid, there)
    ended = ends(process)
    saved = [path.parent for path in spare.glob(f"*/{journal.NAME}")]
    told = [json.loads(line) for line in ended.err.splitlines() if line.startswith('{"record":"row"')]
    found = {
        "the journal": sizes(there),
        "a folder among the temporary ones": [one for each in saved for one in sizes(each)],
        "stderr": [record["case"]["workload"]["cols"] for record in told],
    }
    begun = [int(line) for line in witness.read_text(encoding="utf-8").split()]
    again = saved[0] if saved else there if there.exists() else None
    return Broken(begun, found, ended.code, goes_on(words, again, place) if again else "nothing to resume")


def goes_on(words: Sequence[str], folder: Path, place: Path) -> str:
    """What becomes of ``resume=<folder>``."""
    ended = ends(start([*words, f"resume={folder}"], place))
    rows = Counter(row.status for row in journal.read(folder))
    return f"{rows['ok']} ok" if ended.code == 0 else f"code {ended.code}, {dict(rows)}"


def disk_part(found: Mapping[str, Broken]) -> Part:
    """What follows."""
    lines = [
        (name, len(one.begun), *(len(some) or "" for some in one.found.values()), one.lost, one.code, one.went_on)
        for name, one in found.items()
    ]
    lost = sum(one.lost for one in found.values())
    quiet = sum(one.code == 0 for one in found.values())
    ended = sum(one.went_on == f"{DISK_CASES} ok" for one in found.values())
    places = next(iter(found.values())).found
    return Part(
        "The disk, in the middle of a grid",
        [
            (f"nothing that was measured is lost: {len(found)} ways", f"{lost} rows", word(not lost)),
            ("the exit code tells", f"{quiet} of {len(found)} silent", word(not quiet)),
            ("what is left can be resumed to its end", f"{ended} of {len(found)}", word(ended == len(found))),
        ],
        table(["", "begun", *(f"rows in {name}" for name in places), "lost", "exit code", "resumed to its end"], lines)
        + f"\n\n{DISK_CASES} cases. Begun: by the function's own account; the last of them was in flight.",
    )


# --- commands ---


def grid(file: Path, function: str, cases: int) -> list[str]:
    """The command: ``cases`` sizes of a function of the user's."""
    size = ["workload.rows=8", f"workload.cols=range(1,{cases + 1})"]
    return ["-m", "workload=gelu", *size, "impl=file", f"impl.path={file}:{function}", "device=cpu", "log=none", *QUICK]


def user_file(folder: Path, injected: Mapping[int, str], witness: Path | None = None) -> Path:
    """The user's functions, in ``folder``."""
    path = folder / "user.py"
    path.write_text(f"FAULTS = {dict(injected)}\nWITNESS = {str(witness)!r}\n{USER}", encoding="utf-8")
    return path


def resumed(words: Sequence[str], place: Path) -> list[str]:
    """The command that goes on with what is under ``place``, or that begins."""
    there = journal_folder(place)
    if there is None:
        return [*words]
    alone = (there / run_dir.PLAN).is_file()  # killed before it was written: then the grid is to be given again
    return [*([] if alone else words), f"resume={there}", "resume.retry=[lost]"]


def start(words: Sequence[str], place: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``python -m runner <words>`` with its results under ``place``, by which its processes are marked."""
    command = [sys.executable, "-m", "runner", *words, f"output_dir={place}"]
    place.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {MARK: str(place)} | dict(environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.started = time.perf_counter()  # type: ignore[attr-defined]
    return process


def ends(process: subprocess.Popen[str]) -> Ended:
    """Wait for it."""
    _, err = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, time.perf_counter() - process.started, err)  # type: ignore[attr-defined]


def until_gone(place: Path) -> tuple[float, list[str]]:
    """Seconds until no process of a command of ``place`` is left, or the bar has passed; and those that are left."""
    started = time.monotonic()
    while (found := alive(place)) and time.monotonic() - started < GONE_BAR_S:
        time.sleep(0.002)
    return time.monotonic() - started, found


def alive(place: Path) -> list[str]:
    """Processes that a command of ``place`` has started, directly or not, and itself: what they were started as."""
    mark, found = f"{MARK}={place}".encode(), []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mark in (proc / "environ").read_bytes().split(b"\0"):
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
    return found


def journal_folder(place: Path) -> Path | None:
    """The folder under ``place`` that has a journal, if there is one."""
    return next((path.parent for path in place.glob(f"*/*/{journal.NAME}")), None)


def records(folder: Path | None) -> list[str]:
    """The key of every whole record of a row in ``folder``, however many a case has."""
    if folder is None or not (folder / journal.NAME).exists():
        return []
    lines = (folder / journal.NAME).read_bytes().splitlines(keepends=True)
    return [found[1].decode() for line in lines if line.endswith(journal.END) and (found := journal.ROW.match(line))]


def sizes(folder: Path) -> list[int]:
    """Of the cases that have a row in ``folder``, if there is a journal."""
    return [size(row) for row in journal.read(folder)] if (folder / journal.NAME).exists() else []


def size(row: Row) -> int:
    """By which a case of these grids is told from the others."""
    cols = row.case.workload.fields["cols"]
    assert isinstance(cols, int)
    return cols


def word(kept: bool) -> str:
    """PASS or MISS."""
    return "PASS" if kept else "MISS"


PARTS: dict[str, Callable[[Path, int, int], Part]] = {
    "mix": mix,
    "overhead": overhead,
    "kills": killed,
    "many": many,
    "lock": locked,
    "disk": disk,
}

if __name__ == "__main__":
    main()

"""Two sweeps share one GPU: kill the holder of its lock while the other one waits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.common import ROOT, table, word
from benchmarks.runner.faults.grids import Part
from runner.device.lock import VARIABLE

LINGER_S = 0.3  # for which the worker of a killed holder still uses its GPU
HOLDER = """
import subprocess, sys, time
from runner.device.lock import GpuLock
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


def locked(folder: Path, cases: int, kills: int) -> Part:
    """Kill holders while the next one waits, with workers that hold the lock too and with workers that do not."""
    return lock_part(*(handovers(folder / str(inherits), kills, inherits=inherits) for inherits in (True, False)))


@dataclass(frozen=True)
class Handovers:
    """How the lock went from each holder to the next."""

    seconds: Sequence[float]  # from the kill until the next one's worker runs
    overlaps: int  # workers that began before another had ended


def handovers(folder: Path, kills: int, *, inherits: bool) -> Handovers:
    """Kill ``kills`` holders, each at a random moment. ``inherits``: whether their workers hold the lock."""
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
    """Wait until ``process`` prints ``wanted``."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    raise RuntimeError(f"the process ended with code {process.wait()} and never printed {wanted}")


def overlaps(beats: str) -> int:
    """Return how many processes began before an earlier one had ended. Each line of ``beats`` is a pid and a moment."""
    spans: dict[str, list[int]] = {}
    for line in beats.splitlines():
        pid, moment = line.split()
        spans.setdefault(pid, []).append(int(moment))
    ordered = sorted((min(some), max(some)) for some in spans.values())
    return sum(later[0] < earlier[1] for earlier, later in pairwise(ordered))


def lock_part(shared: Handovers, alone: Handovers) -> Part:
    """Return the bar and the table, for workers that hold the lock and workers that do not."""
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

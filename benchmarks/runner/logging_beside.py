"""Test whether times agree with and without W&B, and with and without the live display.

    python -m benchmarks.runner.logging_beside [--rounds 3] [--write]

The same grid runs with ``log=none`` twice (their ratio is the noise of this comparison), with ``log=wandb`` (offline),
and with ``log=none`` and the live display on a pseudo-terminal. Each round runs all four, starting with another one.
During every run the script notes each W&B process that inherits the run's mark, and the time of its start.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev

from benchmarks.common import LIMIT_S, ROOT, environment, load_average, page, publish, table
from runner.records.row import Row
from runner.store import journal
from runner.store.journal import NAME

MARK = "RUNNER_BENCHMARK_MARK"  # in the environment of a run, and so of everything it starts
WANDB = re.compile(rb"wandb[_-](upload|core)|wandb[\0 ](sync|service)|gpu_stats")
SCAN_S = 0.1
TERMINAL = (45, 140)  # lines, characters
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)  # by degrees of freedom

WORKLOADS = {  # a grid of several sizes for several workloads: options of its own, given with --config-dir
    "small_gelu": "defaults: [gelu, _self_]\nrows: 512\ncols: 512\naxes: {}\n",
    "small_softmax": "defaults: [softmax, _self_]\nrows: 512\ncols: 512\naxes: {}\n",
    "small_matmul": "defaults: [matmul, _self_]\nsize: 256\naxes: {}\n",
    "small_mlp": "defaults: [mlp, _self_]\ndim: 64\nbatch: 64\nlayers: 2\naxes: {}\n",
}
BASE, AGAIN, LOGGED, DRAWN = "log=none", "log=none again", "log=wandb", "log=none, live display"
ARMS = (BASE, AGAIN, LOGGED, DRAWN)

Name = str  # of a case: "gelu seed=0"


@dataclass
class Watched:
    """One run: its times and its W&B processes."""

    folder: Path
    times_us: dict[Name, float]
    last_row: float  # when the last row was written, seconds since the epoch
    others_cpus: float  # CPUs that other processes, this script included, kept busy meanwhile
    scans: int = 0  # scans of /proc until the last row
    wandb: dict[int, float] = field(default_factory=dict)  # process id → time of its start


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times each arm is run; medians are compared")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    runs: dict[str, list[Watched]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="logging-beside-") as scratch:
        config = Path(scratch) / "conf" / "workload"
        config.mkdir(parents=True)
        for name, text in WORKLOADS.items():
            (config / f"{name}.yaml").write_text(text, encoding="utf-8")
        for index in range(options.rounds):
            for turn in range(len(ARMS)):
                arm = ARMS[(index + turn) % len(ARMS)]
                output_dir = Path(scratch) / f"{index}-{turn}"
                runs[arm].append(watched(words(arm, options.device, config.parent, output_dir), arm, output_dir))
        facts = environment(runs[BASE][-1].folder)
    body = "\n\n".join([overall(runs), processes(runs), each_case(runs)])
    publish("logging_beside", page("Timings beside the logger", body, facts, load), facts, options.write)


def words(arm: str, device: str, config: Path, output_dir: Path) -> list[str]:
    """Return the command of one run."""
    log = ["log=wandb", "log.wandb.mode=offline"] if arm == LOGGED else ["log=none"]
    grid = ["-m", f"workload={','.join(WORKLOADS)}", "impl=torch", "seed=0,1,2", f"device={device}"]
    return [sys.executable, "-m", "runner", "--config-dir", str(config), *grid, *log, f"output_dir={output_dir}"]


def watched(command: list[str], arm: str, output_dir: Path) -> Watched:
    """Run ``command`` and observe it. Raises RuntimeError unless it exits 0 and every case was timed."""
    mark = uuid.uuid4().hex
    started, busy_s, own_s = time.monotonic(), machine_cpu_s(), children_cpu_s()
    with sink(arm == DRAWN) as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARK: mark, "TERM": "xterm-256color"},
        )
        scanned: list[float] = []
        found = scan_until(process, f"{MARK}={mark}".encode(), scanned)
    others_s = machine_cpu_s() - busy_s - (children_cpu_s() - own_s)
    others_cpus = max(0.0, others_s) / (time.monotonic() - started)
    folder = next(iter(output_dir.glob("*/*/")), None)
    rows = journal.read_rows(folder) if folder else []
    if process.returncode or folder is None or not rows or not all(row.time_us for row in rows):
        raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}")
    last_row = (folder / NAME).stat().st_mtime
    times = {f"{row.case.workload.name} seed={row.case.settings.seed}": time_us(row) for row in rows}
    return Watched(folder, times, last_row, others_cpus, sum(at < last_row for at in scanned), found)


@contextmanager
def sink(terminal: bool) -> Iterator[int]:
    """Open a pipe, or a pseudo-terminal, whose output is read and dropped."""
    if terminal:
        read, write = pty.openpty()
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", *TERMINAL, 0, 0))
    else:
        read, write = os.pipe()

    def drain() -> None:
        try:
            while os.read(read, 1 << 16):
                pass
        except OSError:  # the end of a pseudo-terminal
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        yield write
    finally:
        os.close(write)
        reader.join()
        os.close(read)


def scan_until(process: subprocess.Popen[bytes], mark: bytes, scanned: list[float]) -> dict[int, float]:
    """Scan for W&B processes with ``mark`` until ``process`` ends. Return the time of start of each."""
    found: dict[int, float] = {}
    strangers = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {process.pid}
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
        for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - strangers - found.keys():
            try:
                proc = Path("/proc") / str(pid)
                if mark not in (proc / "environ").read_bytes().split(b"\0"):
                    strangers.add(pid)
                elif WANDB.search((proc / "cmdline").read_bytes()):
                    found[pid] = start_of(proc)
            except OSError:  # it has ended, or is another user's
                continue
        scanned.append(time.time())
        time.sleep(SCAN_S)
    return found


def start_of(proc: Path) -> float:
    """Return the time of the process's start, in s since the epoch, accurate to about 0.02 s."""
    ticks = int((proc / "stat").read_text().rpartition(")")[2].split()[19])  # field 22 of proc(5)
    age_s = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def machine_cpu_s() -> float:
    """Return the CPU seconds of all processes on this machine since it was started."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """Return the CPU seconds of all ended commands of this script, with the children that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def overall(runs: dict[str, list[Watched]]) -> str:
    """Return a table of the geometric mean over all cases of each arm's ratio to ``log=none``, and its spread."""
    lines = []
    for arm in ARMS[1:]:
        logs = [math.log(ratio(runs, arm, name)) for name in runs[BASE][0].times_us]
        by_round = [
            math.exp(fmean(math.log(one.times_us[name] / base.times_us[name]) for name in base.times_us))
            for one, base in zip(runs[arm], runs[BASE], strict=True)
        ]
        half = T_975[min(len(logs) - 2, len(T_975) - 1)] * stdev(logs) / math.sqrt(len(logs))
        interval = f"{math.exp(fmean(logs) - half):.4f} to {math.exp(fmean(logs) + half):.4f}"
        rounds = f"{min(by_round):.4f} to {max(by_round):.4f}"
        lines.append((f"{arm} / {BASE}", f"{math.exp(fmean(logs)):.4f}", interval, rounds))
    others = (f"{arm} {max(one.others_cpus for one in runs[arm]):.2f}" for arm in ARMS)
    count = f"{len(runs[BASE][0].times_us)} cases, {len(runs[BASE])} rounds"
    return (
        f"## Ratio of the times: geometric mean of {count}\n\n"
        + table(["arms", "geometric mean", "95 % interval over cases", "round by round"], lines)
        + f"\n\nCPUs kept busy by anything else, worst round of each arm: {', '.join(others)}. Above 0.1 disturbs."
    )


def processes(runs: dict[str, list[Watched]]) -> str:
    """Return a table of the number of W&B processes, and the start of the first one."""
    lines = []
    for arm in ARMS:
        starts = [at - one.last_row for one in runs[arm] for at in one.wandb.values()]
        early = sum(at < 0 for at in starts)
        first = f"{min(starts):+.2f} s" if starts else "-"
        lines.append((arm, sum(one.scans for one in runs[arm]), early, len(starts) - early, first))
    return "## W&B processes of the run, by when they were started\n\n" + table(
        ["arm", "scans while timing", "before the last row", "after it", "first, from the last row"], lines
    )


def each_case(runs: dict[str, list[Watched]]) -> str:
    """Return a table of the medians over the rounds, and their ratios."""
    lines = [
        (name, median_us(runs[BASE], name), *(f"{ratio(runs, arm, name):.4f}" for arm in ARMS[1:]))
        for name in runs[BASE][0].times_us
    ]
    titles = ["case", f"{BASE}, us", *(f"{arm} / {BASE}" for arm in ARMS[1:])]
    return "## Case by case: medians over the rounds\n\n" + table(titles, lines)


def ratio(runs: dict[str, list[Watched]], arm: str, name: Name) -> float:
    """Return the median time of a case in ``arm`` over its median with ``log=none``."""
    return median_us(runs[arm], name) / median_us(runs[BASE], name)


def median_us(some: list[Watched], name: Name) -> float:
    """Return the median time of one case over the rounds, in us."""
    return median(one.times_us[name] for one in some)


def time_us(row: Row) -> float:
    """Return the time by which the row is ranked."""
    assert row.time_us is not None
    return row.time_us


if __name__ == "__main__":
    main()

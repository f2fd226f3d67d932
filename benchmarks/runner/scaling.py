"""Measure how many more cases a minute several GPUs finish, and whether a case's time depends on their number.

    python -m benchmarks.runner.scaling [--cases 400] [--write]

The same grid runs on 1, 2, 4 and 8 GPUs, as far as they exist: GELU of several sizes, with two implementations that
compile nothing. Then a small grid of GELU and a matrix product runs on each GPU alone, which shows how much the GPUs
themselves differ. Cases a minute count from the first case to the last row. The time before, in which a process starts
and imports torch, does not depend on the grid.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.common import LIMIT_S, ROOT, digits, environment, load_average, page, phase_table, publish, table, word
from runner.device import gpus
from runner.records.row import Row
from runner.store import journal

COUNTS = (1, 2, 4, 8)
BARS = {4: 3.8, 8: 7.5}
SAME_BAR = 0.01
IMPLS = ("torch", "naive")
ROWS, LEAST, STEP = 2048, 1024, 16  # sizes are cols = 1024, 1040, ...
QUICK = ["measure.benchmark.max_s=0.2", "measure.benchmark.paired_rounds=0"]
REFERENCE = ["-m", "workload=gelu,matmul", "default_axes=false", "impl=torch", "log=none"]
POLL_S = 0.005
STATE = {"clock, MHz": "sm_clock_mhz", "power, W": "power_w", "heat, C": "temperature_c"}


@dataclass(frozen=True)
class Grid:
    """One run of the command."""

    before_s: float  # from the start of the command to the first case
    cases_s: float  # from there to the last record
    wall_s: float  # of the whole command
    parent_s: float  # CPU time of its parent process alone, all in all
    parent_cases_s: float  # and from the first case to the last record: then it makes tables
    rows: Mapping[str, Row]  # by the key of the case

    @property
    def a_minute(self) -> float:
        """Cases."""
        return 60 * len(self.rows) / self.cases_s

    @property
    def worker_s(self) -> float:
        """Mean seconds of a case in its worker."""
        return fmean(float(row.metrics["wall_s"]) for row in self.rows.values())  # type: ignore[arg-type]

    @property
    def between_s(self) -> float:
        """Seconds of a GPU outside cases, for each case: between cases, before the first one and after the last one."""
        return self.cases_s * len(self.indices) / len(self.rows) - self.worker_s

    def on(self, index: int) -> list[Row]:
        """Return the rows of one GPU."""
        return [row for row in self.rows.values() if row.metrics["gpu_index"] == index]

    @property
    def indices(self) -> list[int]:
        """Indices of the GPUs that ran a case."""
        return sorted({int(row.metrics["gpu_index"]) for row in self.rows.values()})  # type: ignore[arg-type]


def main() -> None:
    """Run everything and print the page; with --write keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results/")
    options, load = parser.parse_args(), load_average()
    there = gpus.visible()
    if not there:
        parser.error("there is no GPU here")
    found: dict[int, Grid] = {}
    with tempfile.TemporaryDirectory(prefix="scaling-") as scratch:
        folder = Path(scratch)
        # Brings torch into the disk cache, and measures each GPU's peak, which happens once and takes two seconds.
        command(words(4 * len(there), range(len(there))), folder / "before")
        for count in (count for count in COUNTS if count <= len(there)):
            found[count], facts = command(words(options.cases, range(count)), folder / f"on {count}")
            print(f"{count} GPUs: {found[count].wall_s:.1f} s", flush=True)
        alone = {}
        for gpu in there[: max(found)]:
            alone[gpu.index], _ = command([*REFERENCE, *on([gpu.index])], folder / f"alone {gpu.index}")
            print(f"GPU {gpu.index} alone: {alone[gpu.index].wall_s:.1f} s", flush=True)
    publish("scaling", page("Several GPUs", report(found, alone), facts, load), facts, options.write)


def words(cases: int, indices: Sequence[int]) -> list[str]:
    """Return the arguments of the command."""
    size = f"workload.cols=range({LEAST},{LEAST + STEP * (cases // len(IMPLS))},{STEP})"
    grid = ["-m", "workload=gelu", f"workload.rows={ROWS}", size, f"impl={','.join(IMPLS)}", "log=none"]
    return [*grid, *QUICK, *on(indices)]


def on(indices: Sequence[int]) -> list[str]:
    """Return the argument that selects the GPUs."""
    return [f"launcher.gpus={','.join(map(str, indices))}"]


def command(words: Sequence[str], output_dir: Path) -> tuple[Grid, dict[str, Any]]:
    """Run ``python -m runner <words>``. Return figures and environment. Raises RuntimeError if a case is not timed."""
    output_dir.mkdir()
    started = time.time()
    with open(output_dir / "printed", "w+", encoding="utf-8") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *words, f"output_dir={output_dir}"],
            cwd=ROOT,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        first = first_cpu_s = last_cpu_s = written = 0.0
        for _ in until_ended(process.pid, LIMIT_S):
            if not first and (first := began(output_dir)):
                first_cpu_s = own_cpu_s(process.pid)
            if (path := journal_of(output_dir)) and (now := path.stat().st_mtime) != written:
                last_cpu_s, written = own_cpu_s(process.pid), now
        parent_s = own_cpu_s(process.pid)
        wall_s, code = time.time() - started, process.wait()
        printed.seek(0)
        folder = next(iter(output_dir.glob("*/*/")), None)
        if code or folder is None or not first:
            raise RuntimeError(f"{' '.join(words)} ended with code {code}:\n{printed.read()}")
    last = (folder / journal.NAME).stat().st_mtime
    rows = {row.case.key: row for row in journal.read_rows(folder)}
    if untimed := [row for row in rows.values() if "gpu_us" not in row.metrics]:
        raise RuntimeError(f"{len(untimed)} of {len(rows)} cases not timed on a GPU; {untimed[0].reason}")
    return Grid(first - started, last - first, wall_s, parent_s, last_cpu_s - first_cpu_s, rows), environment(folder)


def until_ended(pid: int, limit_s: float) -> Iterator[None]:
    """Yield every ``POLL_S`` while a child runs. The child stays to be waited for. Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        yield
        if time.monotonic() > deadline:
            raise TimeoutError(f"no end within {limit_s:g} s")
        time.sleep(POLL_S)


def began(output_dir: Path) -> float:
    """Return the time now if a worker has been given a case; else 0."""
    path = journal_of(output_dir)
    return time.time() if path and b'"record":"start"' in path.read_bytes() else 0.0


def journal_of(output_dir: Path) -> Path | None:
    """Return the journal of the only run there, if it has begun."""
    return next(iter(output_dir.glob(f"*/*/{journal.NAME}")), None)


def own_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, without its children. The process must not be waited for yet."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- what follows; no GPU ---


def report(found: Mapping[int, Grid], alone: Mapping[int, Grid]) -> str:
    """Return the bars and all tables. ``found``: by number of GPUs. ``alone``: by index of the GPU."""
    cases = len(found[1].rows)
    return "\n\n".join(
        [
            f"{cases} cases: GELU of {cases // len(IMPLS)} sizes, {ROWS} rows, float32; {' and '.join(IMPLS)}; "
            f"{' '.join(QUICK)}.",
            "## Bars\n\n" + table(["bar", "seen", ""], bars(found)),
            "## Cases a minute\n\n" + rate_table(found),
            "From the first case to the last row. In the worker: a case, the mean. Between: the rest of a GPU's time, "
            "over its cases: until its worker has the next one, and before its first and after its last, while others "
            "work. Before: Python, composing, torch, the workers' start. The parent's "
            "CPU time is of its process alone, from start to end; ms a case: of that, until the last row.",
            "## Seconds of a case in its worker, by GPUs at work\n\n"
            + phase_table({str(count): [*one.rows.values()] for count, one in found.items()}),
            "## The same case on several GPUs at work and on one\n\n" + times_table(found),
            "`gpu_us` in that grid over that of the same case in the grid on one GPU, which was GPU 0. For GPU 0 the "
            "ratio shows the effect of the other GPUs' work. For the others it also contains the differences between "
            "GPUs, which the next table shows.",
            "## Each GPU alone, the others idle\n\n" + alone_table(alone),
            "## State of the GPUs\n\n" + state_table(found),
            "Medians over the cases.",
        ]
    )


def bars(found: Mapping[int, Grid]) -> list[tuple[str, str, str]]:
    """Return for each bar its text, the result, and PASS or MISS."""
    lines = []
    for count, bar in BARS.items():
        name = f"{bar:g} x the cases a minute on {count} GPUs"
        if count in found:
            times = found[count].a_minute / found[1].a_minute
            lines.append((name, f"{digits(times)} x", word(times >= bar)))
        else:
            lines.append((name, f"there are no {count}", ""))
    medians = {
        (count, index): median(ratios(found[count].on(index), found[1]))
        for count, one in found.items()
        if count > 1
        for index in one.indices
    }
    name = f"times within {100 * SAME_BAR:g} % of those on one GPU: median of each GPU"
    if not medians:
        return [*lines, (name, "there is only one", "")]
    farthest = max(medians.values(), key=lambda ratio: abs(ratio - 1))
    return [*lines, (name, f"{farthest:.4f} at the farthest", word(abs(farthest - 1) <= SAME_BAR))]


def ratios(rows: Sequence[Row], single: Grid) -> list[float]:
    """Return ``gpu_us`` of each row over that of the same case on one GPU."""
    return [_us(row) / _us(single.rows[row.case.key]) for row in rows]


def rate_table(found: Mapping[int, Grid]) -> str:
    """Return a table with a line for each grid."""
    lines = [
        (
            count,
            one.a_minute,
            one.a_minute / found[1].a_minute,
            one.cases_s,
            f"{1e3 * one.worker_s:.1f}",
            f"{1e3 * one.between_s:.1f}",
            one.before_s,
            one.wall_s,
            found[1].wall_s / one.wall_s,
            one.parent_s,
            f"{1e3 * one.parent_cases_s / len(one.rows):.2f}",
        )
        for count, one in found.items()
    ]
    rate = ["cases a minute", "x", "cases, s", "in the worker, ms", "between, ms"]
    return table(["GPUs", *rate, "before, s", "whole command, s", "x", "parent's CPU, s", "ms a case"], lines)


def times_table(found: Mapping[int, Grid]) -> str:
    """Return a table with a line for each GPU of each grid."""
    lines = []
    for count, one in found.items():
        for index in one.indices if count > 1 else []:
            each = ratios(one.on(index), found[1])
            far = sum(abs(ratio - 1) > SAME_BAR for ratio in each)
            some = [f"{ratio:.4f}" for ratio in (median(each), min(each), max(each))]
            lines.append((f"{count}", index, len(each), *some, far))
    return table(["GPUs at work", "GPU", "cases", "median", "least", "most", f"beyond {100 * SAME_BAR:g} %"], lines)


def alone_table(alone: Mapping[int, Grid]) -> str:
    """Return a table of each GPU's times of the reference cases, and their ratios to the first GPU's."""
    by_name = {
        index: {row.case.workload.name: _us(row) for row in one.rows.values()} for index, one in sorted(alone.items())
    }
    first = next(iter(by_name.values()))
    lines = []
    for index, us in by_name.items():
        (row, *_) = alone[index].rows.values()
        shown = [text for name in first for text in (f"{us[name]:.3f}", f"{us[name] / first[name]:.4f}")]
        lines.append((index, row.metrics["gpu_uuid"], *shown))
    titles = [title for name in first for title in (f"{name}, us", "over the first's")]
    return table(["GPU", "UUID", *titles], lines)


def state_table(found: Mapping[int, Grid]) -> str:
    """Return a table of clock, power and temperature of each GPU in each grid, and the delay of its first case."""
    lines = []
    for count, one in found.items():
        first = {index: min(_started_at(row) for row in one.on(index)) for index in one.indices}
        for index, began_at in first.items():
            some = one.on(index)
            throttled = sum(bool(row.metrics.get("throttle")) for row in some)
            late = f"{(began_at - min(first.values())).total_seconds():.2f}"
            lines.append((f"{count}", index, *(_median(some, column) for column in STATE.values()), throttled, late))
    return table(["GPUs at work", "GPU", *STATE, "cases held down", "first case after, s"], lines)


def _started_at(row: Row) -> datetime:
    return datetime.fromisoformat(str(row.metrics["started_at"]))


def _us(row: Row) -> float:
    return float(row.metrics["gpu_us"])


def _median(rows: Sequence[Row], column: str) -> str:
    """Return the median over the rows that have the column."""
    values = [float(row.metrics[column]) for row in rows if row.metrics.get(column) is not None]
    return f"{median(values):.0f}" if values else ""


if __name__ == "__main__":
    main()

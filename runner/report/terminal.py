"""The table on the terminal, grouped by problem, with the notes below it."""

from __future__ import annotations

import math
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runner.device.processes import ROOT
from runner.experiment.case import Plan
from runner.experiment.results import ERROR, Comparison, Row
from runner.measure import SUMMARY
from runner.report.derive import Line, Names, lines

GAP = "   "
FILE_WIDTH = 400  # characters: a pipe or a file has room for the whole table
MOST_SUMMARIES = 8  # printed ones; a grid may have a thousand
PREFIXES = ("", "k", "M", "G", "T", "P", "E")
TIME = ("us", "ms", "s")
MEMORY = ("B", "KiB", "MiB", "GiB")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process with exit code 1."""
        raise BrokenPipeError


def console() -> Console:
    """Return the console on stdout."""
    out = _Console()
    return out if out.is_terminal else _Console(width=FILE_WIDTH)


@dataclass(frozen=True)
class Terminal:
    """The reporter that is always there: the table, summaries of profilers, notes, and where the results are."""

    plan: Plan
    rows: Sequence[Row]
    rounds: Sequence[Comparison]
    width: int

    def publish(self, folder: Path) -> list[Text | str]:
        """Return what to print."""
        plan, names = self.plan, Names(self.plan.cases)
        derived = lines(self.rows, plan.baseline, self.rounds)
        found: list[Text | str] = []
        if derived:
            found.append(table(derived, names, self.width, plan.columns, _title(plan, self.rows, names)))
        found += summaries(folder, self.rows, names)
        found += notes([line.row for line in derived], names)
        counts = Counter(row.status for row in self.rows)
        ended = [f"{count} {status}" for status, count in counts.items()] or ["no case done"]
        if missing := len(plan.cases) - len(self.rows):
            ended.append(f"{missing} not run")
        plural = "s" * (len(plan.cases) != 1)
        return [*found, f"{len(plan.cases)} case{plural}: {', '.join(ended)}. Results: {folder}"]


def _title(plan: Plan, rows: Sequence[Row], names: Names) -> str:
    """Return the name of the run, its devices, and the constant fields of each workload."""
    devices = ", ".join(dict.fromkeys(row.device for row in rows if row.device))
    title = [f"{plan.name} on {devices}" if devices else plan.name]
    for workload, fields in names.constants.items():
        title.append(f"{workload}: {' '.join(f'{name}={value}' for name, value in fields.items())}")
    return "\n".join(title)


@dataclass(frozen=True)
class TableColumn:
    """A column of the table. It is left out if it is empty or the terminal is too narrow."""

    title: str
    text: Callable[[Line], str]
    drop: int = 0  # place in the order in which columns are dropped on a narrow terminal, from 1; 0: never


COLUMNS = (
    TableColumn("time", lambda line: scaled(line.time_us, TIME)),
    TableColumn("±95 %", lambda line: _figure(line.row, "interval_pct", "{:.1f} %"), drop=7),
    TableColumn("speed-up", lambda line: "1 (base)" if line.baseline and line.speedup else _factor(line.speedup)),
    TableColumn("vs base", lambda line: line.vs_baseline or ""),
    TableColumn("FLOP/s", lambda line: _number(line.tflops, 1e12), drop=1),
    TableColumn("B/s", lambda line: _number(line.gbps, 1e9), drop=2),
    TableColumn("% peak", lambda line: _figure(line.row, "pct_of_measured_peak", "{:.0f} %"), drop=5),
    TableColumn("err/tol", lambda line: _number(line.value("err_over_tol")), drop=4),
    TableColumn("peak mem", lambda line: scaled(line.value("peak_mem_bytes"), MEMORY, 1024), drop=3),
    TableColumn("compile", lambda line: _figure(line.row, "compile_s", "{:.1f} s"), drop=6),
)


def table(lines: Sequence[Line], names: Names, width: int, chosen: Sequence[str] = (), title: str = "") -> Text:
    """Return the table: one line per case, under a heading per problem that says what varies.

    It has the usual columns, as far as they fit into ``width`` characters, or the ``chosen`` ones of docs/columns.md.
    A table of rich would take a millisecond per line, too long for ten thousand of them.
    """
    if chosen:
        middle = [(0, [name, *(_cell(names.value(line, name)) for line in lines)]) for name in chosen]
    else:
        filled = [(column.drop, [column.title, *map(column.text, lines)]) for column in COLUMNS]
        middle = [(drop, cells) for drop, cells in filled if any(cells[1:])]
    first = [
        "implementation",
        *(f"{'★' if line.fastest == 'yes' else ' '} {names.impl(line.row.case)}" for line in lines),
    ]
    last = ["verdict", *(verdict(line.row) for line in lines)]
    kept = _fitting([(0, first), *middle, (0, last)], width)
    widths = [max(map(cell_len, column)) for column in kept]
    heads, *rows = zip(*kept, strict=True)
    drawn = Text(f"{title}\n" if title else "", no_wrap=True, overflow="ignore")
    drawn.append(_aligned(heads, widths), style="bold").append("\n")
    drawn.append(" " + "─" * (sum(widths) + len(GAP) * len(widths[1:]))).append("\n")
    problem = None
    for line, cells in zip(lines, rows, strict=True):
        if line.row.case.problem != problem:
            problem = line.row.case.problem
            drawn.append(f" {names.heading(line.row.case)}\n", style="bold cyan")
        text = _aligned(cells, widths)
        begin, end = 1 + widths[0], len(text) - len(cells[-1])
        drawn.append(text[:begin], style="bold green" if line.fastest == "yes" else None).append(text[begin:end])
        ok = verdict(line.row) == "ok"
        drawn.append(f"{text[end:]}\n", style=None if ok else "bold red" if line.row.failed else "yellow")
    if chosen and not {"speedup", "vs_baseline"} & set(chosen):
        return drawn
    return drawn.append(_contradictions(lines, names))


def _contradictions(lines: Sequence[Line], names: Names) -> str:
    """Explain speed-ups that differ from the ratio of the two printed times."""
    found = [line for line in lines if line.separate_speedup is not None]
    if not found:
        return ""
    return (
        f"\n{_and_more([line.row for line in found], names)}: speed-up {_factor(found[0].speedup)} was measured by "
        f"alternating the two; the separate times above would give {_factor(found[0].separate_speedup)}\n"
    )


def _fitting(columns: Sequence[tuple[int, list[str]]], width: int) -> list[list[str]]:
    """Return the cells of the ``columns`` that stay so that all fit into ``width``; each comes with its ``drop``."""
    wanted = 1 + sum(max(map(cell_len, cells)) + len(GAP) for _, cells in columns) - len(GAP)
    dropped = set()
    for drop, cells in sorted(columns, key=lambda column: column[0]):
        if drop and wanted > width:
            dropped.add(drop)
            wanted -= max(map(cell_len, cells)) + len(GAP)
    return [cells for drop, cells in columns if drop not in dropped]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of the table: the first and the last cell to the left, the others to the right."""
    spaces = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    middle = [space + cell for cell, space in zip(cells[1:-1], spaces[1:-1], strict=True)]
    return " " + GAP.join([cells[0] + spaces[0], *middle, cells[-1]])


def _cell(value: object) -> str:
    """Return a value as it is, in four digits."""
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "" if value is None else str(value)


COUNTED = {  # verdicts whose reasons have figures that differ from case to case; by whether it ran on a CPU
    ("not_converged", True): "times have a wider interval than asked for (measure.benchmark.target_cpu_pct)",
    ("not_converged", False): "times have a wider interval than asked for (measure.benchmark.target_pct)",
    ("contended", True): "cases shared their CPUs with other processes; see cpu_wait_pct",
    ("contended", False): "cases ran while another process started or stopped using the GPU; see timer_drift_us",
}


def notes(rows: Sequence[Row], names: Names) -> list[str]:
    """Return a line for each reason why a case is not plainly ok, with the cases that share it."""
    shared: dict[str, list[Row]] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        if row.status == "ok" and (not_measured := row.metrics.get("not_measured")):
            shared.setdefault(f"not measured: {not_measured}", []).append(row)
        if text := COUNTED.get((verdict(row), row.device == "cpu")):
            counts[f"{verdict(row)}: {{}} of {len(rows)} {text}"] += 1
        elif reason := _reason(row):
            shared.setdefault(f"{verdict(row)}: {reason}", []).append(row)
        if row.time_us is not None and row.case.workload.fields.get("data") == "zeros":
            counts[
                f"data=zeros: {{}} of {len(rows)} times are for zeros; a GPU may be faster on them than on data"
            ] += 1
    found = []
    for reason, some in shared.items():
        traceback = [f"; its traceback: {file}" for file in some[0].files if PurePath(file).name == ERROR]
        found.append(f"{_and_more(some, names)}: {reason}{''.join(traceback)}")
    return [*found, *(text.format(count) for text, count in counts.items())]


def _and_more(rows: Sequence[Row], names: Names) -> str:
    """Return the first case and how many others there are."""
    return names.case(rows[0].case) + (f" and {len(rows) - 1} more" if rows[1:] else "")


def row_text(row: Row, names: Names) -> str:
    """Return the row in one line, for a log or a pipe."""
    words = [scaled(row.time_us, TIME), _figure(row, "interval_pct", "{:.1f} %"), verdict(row), _reason(row)]
    return " ".join([f"{names.case(row.case)}:", *filter(None, words)])


def _reason(row: Row) -> str:
    """Return the reason, with the line of the implementation that raised; "" if there is none."""
    reason = str(row.reason or row.metrics.get("verdict_reason") or "")
    where = source_line(row.detail)
    return f"{reason} ({where})" if where else reason


def verdict(row: Row) -> str:
    """Return the verdict of a row that is ok, and the status of others."""
    return str(row.metrics.get("verdict", row.status)) if row.status == "ok" else row.status


def scaled(value: object, units: Sequence[str], base: float = 1000.0, digits: int = 4) -> str:
    """Return ``value``, which is in ``units[0]``, in the unit that suits it: ``4.28 T``; "" for None."""
    if not isinstance(value, int | float):
        return ""
    power = 0
    while power < len(units) - 1 and base <= float(f"{abs(value):.{digits}g}") < math.inf:
        value, power = value / base, power + 1
    return f"{value:.{digits}g} {units[power]}".rstrip()


def _factor(speedup: float | None) -> str:
    """Return a speed-up with two decimals; below 1/100 with two significant digits; "" for None."""
    return "" if speedup is None else f"{speedup:.2f}x" if speedup >= 0.01 else f"{speedup:.2g}x"


def _number(value: Any, factor: float = 1.0) -> str:
    """Return ``value * factor`` in three digits and an SI prefix; "" for None."""
    return "" if value is None else scaled(value * factor, PREFIXES, digits=3)


def _figure(row: Row, column: str, form: str) -> str:
    value = row.metrics.get(column)
    return form.format(value) if isinstance(value, int | float) else ""


FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
KERNELS = (ROOT / "runner" / "kernels", ROOT / "kernels")  # the first is a link in a checkout
LIBRARIES = {"site-packages", "dist-packages", "torch"}  # folders of a path


def source_line(detail: str) -> str:
    """Return the last line of an implementation in the traceback ``detail``: ``k.py:6``, ``kernels/gelu/triton.py:34``.

    Return "" if ``detail`` is no traceback, or only the runner and libraries are in it.
    """
    frames = FRAME.findall(detail) if detail.startswith("Traceback ") else []
    for file, number in reversed(frames):
        path = Path(file)
        for root in KERNELS:
            if path.is_relative_to(root):
                return f"kernels/{path.relative_to(root)}:{number}"
        in_python = path.is_relative_to(sysconfig.get_path("stdlib")) or file.startswith("<")
        if not (in_python or LIBRARIES & set(path.parts) or path.is_relative_to(ROOT / "runner")):
            return f"{path.name}:{number}"
    return ""


def summaries(folder: Path, rows: Sequence[Row], names: Names) -> list[str]:
    """Return the first summaries of profilers, each under its case, and how many more there are."""
    files = [(row, PurePath(file)) for row in rows for file in row.files if PurePath(file).name == SUMMARY]
    found = []
    for row, file in files[:MOST_SUMMARIES]:
        others = [path.name for path in map(PurePath, row.files) if path.parent == file.parent and path != file]
        try:
            text = (folder / file).read_text(encoding="utf-8").rstrip()
        except OSError:  # it is on another machine
            continue
        found.append(f"\n{names.case(row.case)}: {file.parent.name}\n{text}")
        found.append(f"  in {folder / file.parent}" + (f": {', '.join(others)}" if others else ""))
    if len(files) > MOST_SUMMARIES:
        found.append(f"\n{len(files) - MOST_SUMMARIES} more summaries are in the folders of {folder / 'files'}")
    return found

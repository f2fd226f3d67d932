"""The table on the terminal: grouped by workload and problem, the fastest of each marked, reasons below it."""

from __future__ import annotations

import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path, PurePath

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from runner.device.processes import ROOT
from runner.experiment.case import CaseRecord, Plan
from runner.experiment.results import ERROR, Comparison, Row
from runner.measure import SUMMARY
from runner.report.derive import Line, Names, lines

FASTEST = "★"
INDENT = "  "
GAP = "   "


@dataclass(frozen=True)
class Shown:
    """A column of the table; one that would stay empty, or that a narrow terminal has no room for, is left out."""

    title: str
    text: Callable[[Line], str]
    goes: int = 0  # its turn to go while there is no room for all, from 1; 0: it stays


COLUMNS = (
    Shown("time", lambda line: time_text(line.row.time_us)),
    Shown("±95 %", lambda line: spread_text(line.row), goes=7),
    Shown("speed-up", lambda line: _speedup(line)),
    Shown("vs base", lambda line: line.vs_baseline or ""),
    Shown("TFLOP/s", lambda line: _number(line.tflops), goes=1),
    Shown("GB/s", lambda line: _number(line.gbps), goes=2),
    Shown("% peak", lambda line: _percent(line.row.metrics.get("pct_of_measured_peak")), goes=5),
    Shown("err/tol", lambda line: _number(line.row.metrics.get("err_over_tol")), goes=4),
    Shown("peak mem", lambda line: bytes_text(line.row.metrics.get("peak_mem_bytes")), goes=3),
    Shown("compile", lambda line: _seconds(line.row.metrics.get("compile_s")), goes=6),
)


def table(lines: Sequence[Line], names: Names, width: int, chosen: Sequence[str] = (), title: str = "") -> Text:
    """One line per case; a heading per problem says what varies. What is constant belongs in the title.

    Columns are the usual ones, as far as they fit into ``width``, or those ``chosen`` by their names in
    ``runner.experiment.columns``. Rich's own Table takes a millisecond a line, which ten thousand lines would show.
    """
    usual = [column for column in COLUMNS if any(column.text(line) for line in lines)]
    shown = [_plain_column(name, names) for name in chosen] or usual
    filled = [(column.goes, [column.title, *map(column.text, lines)]) for column in shown]
    first = ["implementation", *(_name(line, names) for line in lines)]
    last = ["verdict", *(verdict(line.row) for line in lines)]
    kept = _fitting([(0, first), *filled, (0, last)], width)
    widths = [max(map(cell_len, column)) for column in kept]
    heads, *cells = zip(*kept, strict=True)
    drawn = Text(f"{title}\n" if title else "", no_wrap=True, overflow="ignore")
    drawn.append(_aligned(heads, widths), style="bold").append("\n")
    drawn.append(" " + "─" * (sum(widths) + len(GAP) * len(widths[1:]))).append("\n")
    problem = None
    for line, each in zip(lines, cells, strict=True):
        if line.row.case.problem != problem:
            problem = line.row.case.problem
            drawn.append(f" {names.heading(line.row.case)}\n", style="bold cyan")
        text = _aligned(each, widths)
        begin, end = 1 + widths[0], len(text) - len(each[-1])
        drawn.append(text[:begin], style="bold green" if line.fastest == "yes" else None).append(text[begin:end])
        drawn.append(f"{text[end:]}\n", style=_verdict_style(line.row))
    if chosen and not {"speedup", "vs_baseline"} & set(chosen):
        return drawn
    return drawn.append(_of_rounds(lines, names))


def _of_rounds(lines: Sequence[Line], names: Names) -> str:
    """What a reader who divides the times would stumble over."""
    some = [line for line in lines if line.contradicted]
    if not some:
        return ""
    more = f" and {len(some) - 1} more" if some[1:] else ""
    of_times = _times(1 / exp(some[0].apart.log)) if some[0].apart else ""
    return (
        f"\n{names.case(some[0].row.case)}{more}: the speed-up is of rounds in which both were sampled in turn; "
        f"of the two times above, taken one after the other, it would be {of_times}\n"
    )


def _fitting(columns: Sequence[tuple[int, list[str]]], width: int) -> list[list[str]]:
    """The cells of each of ``columns`` that is left when all fit into ``width``, each told with when it ``goes``."""
    widths = [max(map(cell_len, cells)) for _, cells in columns]
    wanted = 1 + sum(widths) + len(GAP) * (len(widths) - 1)
    turns = sorted((goes, index) for index, (goes, _) in enumerate(columns) if goes)
    gone = set()
    while turns and wanted > width:
        _, index = turns.pop(0)
        gone.add(index)
        wanted -= widths[index] + len(GAP)
    return [cells for index, (_, cells) in enumerate(columns) if index not in gone]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The first and the last to the left, the others to the right."""
    filled = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    middle = [space + cell for cell, space in zip(cells[1:-1], filled[1:-1], strict=True)]
    return " " + GAP.join([cells[0] + filled[0], *middle, cells[-1]])


def _name(line: Line, names: Names) -> str:
    return (f"{FASTEST} " if line.fastest == "yes" else INDENT) + names.impl(line.row.case)


def _plain_column(name: str, names: Names) -> Shown:
    """A column of a row as it is, headed by its name, in which its unit stands."""
    return Shown(name, lambda line: _cell(names.value(line, name)))


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def notes(rows: Sequence[Row], names: Names) -> list[str]:
    """A line for each reason why something is not plainly ok, with the cases that share it."""
    shared: dict[str, list[Row]] = {}
    wide = [row for row in rows if verdict(row) == "not_converged"]
    contended = [row for row in rows if verdict(row) == "contended"]
    for row in rows:
        if row.status == "ok" and (not_measured := row.metrics.get("not_measured")):  # else it is the reason
            shared.setdefault(f"not observed: {not_measured}", []).append(row)
        if verdict(row) in ("not_converged", "contended"):
            continue  # each has a figure of its own, so no two would share a line; the rows have them
        if reason := _reason(row):
            shared.setdefault(f"{verdict(row)}: {reason}", []).append(row)
    said = [
        f"{names.case(some[0].case)}{f' and {len(some) - 1} more' if some[1:] else ''}: {why}{_traceback(some[0])}"
        for why, some in shared.items()
    ]
    zeros = sum(row.case.workload.fields.get("data") == "zeros" and row.time_us is not None for row in rows)
    if zeros:
        said.append(
            f"data=zeros: {zeros} of {len(rows)} times are of zeros, on which a GPU can run faster than on data"
        )
    if on_cpu := sum(row.device == "cpu" for row in contended):
        said.append(
            f"contended: other processes took CPU time from {on_cpu} of {len(rows)} (cpu_wait_pct says how much)"
        )
    if on_gpu := len(contended) - on_cpu:
        said.append(f"contended: other processes came to the GPU or went, at {on_gpu} of {len(rows)} (timer_drift_us)")
    if wide:
        fields = dict.fromkeys("target_cpu_pct" if row.device == "cpu" else "target_pct" for row in wide)
        asked = " and ".join(f"measure.benchmark.{field}" for field in fields)
        said.append(f"not_converged: {len(wide)} of {len(rows)} times are less sure than asked ({asked})")
    return said


def plain(row: Row, names: Names) -> str:
    """The row in one line, for a terminal that is none: a log, a pipe."""
    figures = f"{time_text(row.time_us)} {spread_text(row)}"
    return " ".join(f"{names.case(row.case)}: {figures} {verdict(row)} {_reason(row)}".split())


def _reason(row: Row) -> str:
    """In a sentence, and where in the implementation's own code; empty if there is nothing to be said."""
    reason = str(row.reason or row.metrics.get("verdict_reason") or "")
    where = place(row.detail)
    return f"{reason} ({where})" if where else reason


def _traceback(row: Row) -> str:
    """What to read on, in the folder of the run."""
    found = next((file for file in row.files if PurePath(file).name == ERROR), "")
    return f"; its traceback: {found}" if found else ""


def verdict(row: Row) -> str:
    """One word: the status where there is no time, else how far to trust it."""
    return str(row.metrics.get("verdict", row.status)) if row.status == "ok" else row.status


def time_text(time_us: float | None) -> str:
    """Four digits and the unit that suits them; empty for None."""
    if time_us is None:
        return ""
    unit, scale = ("us", 1.0) if time_us < 1e3 else ("ms", 1e3) if time_us < 1e6 else ("s", 1e6)
    return f"{time_us / scale:.4g} {unit}"


def spread_text(row: Row) -> str:
    """Half the 95 % interval, in percent of the time."""
    percent = row.metrics.get("interval_pct")
    return f"{percent:.1f} %" if isinstance(percent, int | float) else ""


def bytes_text(count: object) -> str:
    """Binary units, as memory is counted; empty for None."""
    if not isinstance(count, int | float):
        return ""
    power = min(3, max(0, (int(count).bit_length() - 1) // 10))
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _verdict_style(row: Row) -> str | None:
    return None if verdict(row) == "ok" else "bold red" if row.failed else "yellow"


def _speedup(line: Line) -> str:
    if line.speedup is None:
        return ""
    return "1 (base)" if line.baseline else _times(line.speedup)


def _times(speedup: float) -> str:
    """Format a speed-up; below 1/100 with two significant digits."""
    return f"{speedup:.2f}x" if speedup >= 0.01 else f"{speedup:.2g}x"


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else ""


def _percent(value: object) -> str:
    return f"{value:.0f} %" if isinstance(value, int | float) else ""


def _seconds(value: object) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else ""


FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
KERNELS = (ROOT / "runner" / "kernels", ROOT / "kernels")  # a link in a checkout, which a traceback may follow
LIBRARIES = {"site-packages", "dist-packages", "torch"}  # a folder of a path, anywhere in it


def place(detail: str) -> str:
    """``k.py:6``, or ``kernels/gelu/triton.py:34`` of ours; empty if ``detail`` is no traceback or has no such line."""
    frames = FRAME.findall(detail) if detail.startswith("Traceback ") else []
    theirs = [(Path(file), line) for file, line in frames if _is_theirs(Path(file))]
    if not theirs:
        return ""
    path, line = theirs[-1]
    return f"{_short(path)}:{line}"


def _short(path: Path) -> str:
    """``kernels/gelu/triton.py`` of ours, else the file's name."""
    for root in KERNELS:
        if path.is_relative_to(root):
            return f"kernels/{path.relative_to(root)}"
    return path.name


def _is_theirs(path: Path) -> bool:
    if any(path.is_relative_to(root) for root in KERNELS):  # wherever all of it is installed
        return True
    of_python = path.is_relative_to(sysconfig.get_path("stdlib")) or str(path).startswith("<")
    return not (of_python or LIBRARIES & set(path.parts) or path.is_relative_to(ROOT / "runner"))


MOST = 8  # summaries that a terminal is given; a grid has a thousand


def told(folder: Path, rows: Sequence[Row], names: Names) -> Iterator[str]:
    """The summaries of ``rows``, each with its case above and its other files below; then how many more there are."""
    found = [(row, file) for row in rows for file in row.files if PurePath(file).name == SUMMARY]
    for row, file in found[:MOST]:
        measure = PurePath(file).parent
        others = [PurePath(other).name for other in row.files if PurePath(other).parent == measure and other != file]
        try:
            text = (folder / file).read_text(encoding="utf-8").rstrip()
        except OSError:  # on another machine
            continue
        yield f"\n{names.case(row.case)}: {measure.name}\n{text}"
        yield f"  in {folder / measure}: {', '.join(others)}" if others else f"  in {folder / measure}"
    if len(found) > MOST:
        yield f"\n{len(found) - MOST} more summaries are in the folders of {folder / 'files'}"


LAST = 12  # rows shown while running: the table must fit a screen, and be cheap to draw again
KEPT = 100  # rows from which those are made: a row is shown with its speed-up against another of its problem


class LiveReport:
    """On a terminal a live display; elsewhere one line per row. Use it as a context manager.

    ``total``: how many of the plan's cases are run, if not all.
    """

    def __init__(self, plan: Plan, console: Console, total: int | None = None) -> None:
        self._plan, self._console = plan, console
        self._total = len(plan.cases) if total is None else total
        self._names = Names(plan.cases)
        self._done = 0
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._rounds: deque[Comparison] = deque(maxlen=KEPT)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
        )
        self._task = self._progress.add_task("starting a worker", total=self._total)
        # Once a second: a drawing takes some milliseconds of a core that a CPU case may want (logging_beside.py).
        self._live = Live(console=console, refresh_per_second=1, transient=True, get_renderable=self._draw)

    def __enter__(self) -> LiveReport:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._console.is_terminal:
            self._live.__exit__(None, None, None)

    def started(self, case: CaseRecord) -> None:
        """``case`` is being run now."""
        self._progress.update(self._task, description=f"{case.workload.name} {self._names.impl(case)}")

    def done(self, row: Row) -> None:
        """``row`` is in the journal."""
        self._done += 1
        self._rows.append(row)
        if self._console.is_terminal:
            self._progress.advance(self._task)
        else:  # rich takes ten times as long for a line
            self._console.file.write(f"[{self._done}/{self._total}] {plain(row, self._names)}\n")
            self._console.file.flush()

    def compared(self, rounds: Comparison) -> None:
        """The cases of one problem have been sampled side by side."""
        self._rounds.append(rounds)

    def notice(self, text: str) -> None:
        """Something the user should hear of now."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Group:
        shown = lines(list(self._rows), self._plan.baseline, list(self._rounds))[-LAST:]
        return Group(table(shown, self._names, self._console.width, self._plan.columns), self._progress)

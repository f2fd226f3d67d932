"""The table on the terminal, grouped by problem, with the notes below it."""

from __future__ import annotations

import math
import re
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from runner.device.processes import ROOT
from runner.experiment.results import ERROR, Row, encodable, figure, interval
from runner.measure import SUMMARY, known_columns
from runner.report.derive import Line, Names, Run, may_win

if TYPE_CHECKING:  # the API draws its tables without rich
    from rich.console import Console
    from rich.text import Text

GAP = "   "
FILE_WIDTH = 400  # characters: a pipe or a file has room for the whole table
MOST_SUMMARIES = 8  # printed ones; a grid may have a thousand
MARKS = {"yes": "★", "tied": "≈", "no": " "}  # by the column ``fastest``
QUICK = "quick: wider intervals; leave out quick=true for figures to keep"
TIED = "≈ tied for the fastest: cannot be told apart"


def console() -> Console:
    """Return the console on stdout. It raises BrokenPipeError, where rich would end the process with exit code 1."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    out = Piped()
    return out if out.is_terminal else Piped(width=FILE_WIDTH)


@dataclass(frozen=True)
class Terminal:
    """The reporter that is always there: the table, summaries of profilers, notes, and where the results are."""

    run: Run
    width: int
    some: Sequence[Line] | None = None  # lines of the run to show, in this order; None: all

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the table."""
        return self.run.lines if self.some is None else self.some

    def publish(self, folder: Path) -> list[Text | str]:
        """Return what to print."""
        run, names, shown = self.run, self.run.names, self.lines
        rows = run.rows if self.some is None else run.rows_of(shown)
        found: list[Text | str] = []
        if shown:
            found.append(table(shown, names, self.width, run.columns, title(run, rows, self.width)))
        found += summaries(folder, rows, names)
        if any(one.fields.get("reference") for row in rows for one in row.case.measures):
            from runner.report import side_by_side

            found += [f"\n{heading}\n{text}" for heading, text in side_by_side.tables(folder, rows, names)]
        found += notes([line.row for line in shown], names)
        found += conclusion(run) if run.conclusion and self.some is None else []
        return [*found, f"{ended(run, rows)}. Results: {folder}"]


def conclusion(run: Run) -> list[str]:
    """Return the question of ``run`` and the answers to it; none without both."""
    from runner.report.conclusion import answers

    found = [f"- {answer}" for answer in answers(run)]
    return ["", *([f"Question: {run.question}"] if run.question else []), *found, ""] if found else []


def title(run: Run, rows: Sequence[Row], width: int) -> str:
    """Return the name of ``run`` and the devices of ``rows``, then the constant fields of each of their workloads."""
    ran = (row.device for row in rows if row.device != "cpu" or row.case.device != "cuda")  # not where a GPU is missing
    devices = ", ".join(dict.fromkeys(filter(None, ran)))
    found = [f"{run.title} on {devices}" if devices else run.title]
    shown = {row.case.workload.name for row in rows}
    for workload, fields in run.names.constants.items():
        if workload in shown and fields:
            text = f"{workload}: {' '.join(f'{name}={value}' for name, value in fields.items())}"
            found += textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(found)


def ended(run: Run, rows: Sequence[Row]) -> str:
    """Return how ``rows`` of ``run`` ended: ``12 cases: 10 ok, 1 wrong, 1 not run``, ``4 of 12 cases: 4 ok``."""
    count, plural = len(run.cases), "s" * (len(run.cases) != 1)
    counts = Counter(row.status for row in rows)
    how = [f"{number} {status}" for status, number in counts.items()]
    if len(rows) < len(run.rows):
        return f"{len(rows)} of {count} case{plural}" + (f": {', '.join(how)}" if how else "")
    how = how or ["no case done"]
    if missing := count - len(rows):
        how.append(f"{missing} not run")
    return f"{count} case{plural}: {', '.join(how)}"


@dataclass(frozen=True)
class TableColumn:
    """A column of the table. It is left out if it is empty or the terminal is too narrow."""

    title: str
    name: str  # in docs/columns.md
    text: Callable[[Line], str]
    drop: int = 0  # place in the order in which columns are dropped on a narrow terminal, from 1; 0: never


COLUMNS = (
    TableColumn("time", "time_us", lambda line: figure(line.time_us, "us")),
    TableColumn(
        "pipelined",
        "pipelined_us",
        lambda line: figure(line.value("pipelined_us"), "us") if line.launch_bound else "",
        drop=8,
    ),
    TableColumn("±95 %", "interval_pct", lambda line: interval(line.value("interval_pct")), drop=7),
    TableColumn(
        "speed-up", "speedup", lambda line: "1 (base)" if line.baseline and line.speedup else _factor(line.speedup)
    ),
    TableColumn("vs base", "vs_baseline", lambda line: line.vs_baseline or ""),
    TableColumn("FLOP/s", "tflops", lambda line: _rate(line.tflops, 1e12), drop=1),
    TableColumn("B/s", "gbps", lambda line: _rate(line.gbps, 1e9), drop=2),
    TableColumn("% peak", "pct_of_measured_peak", lambda line: _share(line.value("pct_of_measured_peak")), drop=5),
    TableColumn("err/tol", "err_over_tol", lambda line: _error(line.value("err_over_tol")), drop=4),
    TableColumn("peak mem", "peak_mem_bytes", lambda line: figure(line.value("peak_mem_bytes"), "byte"), drop=3),
    TableColumn("compile", "compile_s", lambda line: figure(line.value("compile_s"), "s", digits=3), drop=6),
)
INTERVALS = ("interval_pct", "stat_pct", "latency_pct", "host_pct", "pipelined_pct")


def _chosen(chosen: Sequence[str], names: Names) -> list[TableColumn]:
    """Return the columns of the table that the user has ``chosen``."""
    units = {name: column.unit for name, column in known_columns().items()}

    def cell(line: Line, name: str) -> str:
        value = names.value(line, name)
        return interval(value) if name in INTERVALS else figure(value, units.get(name, ""))

    return [TableColumn(name, name, partial(cell, name=name)) for name in chosen]


def table(
    lines: Sequence[Line],
    names: Names,
    width: int,
    chosen: Sequence[str] = (),
    title: str = "",
    *,
    footnotes: bool = True,
) -> Text:
    """Return the table of ``drawn``, below ``title``, with footnotes."""
    from rich.text import Text

    parts, dropped = drawn(lines, names, width, chosen)
    text = Text(f"{title}\n" if title else "", no_wrap=True, overflow="ignore")
    for part, style in parts:
        text.append(part, style=style)
    if footnotes and (found := list(explain(lines, names, dropped))):
        text.append("\n" + "\n".join(found) + "\n")
    return text


Parts = list[tuple[str, str | None]]  # of a text, each with its style


def drawn(
    lines: Sequence[Line], names: Names, width: int, chosen: Sequence[str] = ()
) -> tuple[Parts, Sequence[TableColumn]]:
    """Return the table, one line per case under a heading per problem that says what varies; and columns left out.

    It has the usual columns, as far as they fit into ``width`` characters, or the ``chosen`` ones of docs/columns.md.
    A table of rich would take a millisecond per line, too long for ten thousand of them.
    """
    first, filled, last = cells(lines, names, chosen)
    filled = {column: [encodable(column.title, sys.stdout.encoding), *texts] for column, (_, *texts) in filled.items()}
    dropped = _dropped(filled, width - 1 - len(GAP) - _width(first) - _width(last))
    kept = [first, *(texts for column, texts in filled.items() if column not in dropped), last]
    widths = list(map(_width, kept))
    heads, *rows = zip(*kept, strict=True)
    rule = encodable("─", sys.stdout.encoding) * (sum(widths) + len(GAP) * len(widths[1:]))
    parts: Parts = [(_aligned(heads, widths), "bold"), (f"\n {rule}\n", None)]
    problem = None
    for line, texts in zip(lines, rows, strict=True):
        if line.row.case.problem != problem:
            problem = line.row.case.problem
            parts.append((f" {names.heading(line.row.case)}\n", "bold cyan"))
        text = _aligned(texts, widths)
        begin, end = 1 + widths[0], len(text) - len(texts[-1])
        parts += [(text[:begin], None if line.fastest == "no" else "bold green"), (text[begin:end], None)]
        ok = verdict(line.row) == "ok"
        parts.append((f"{text[end:]}\n", None if ok else "bold red" if line.row.failed else "yellow"))
    return parts, dropped


Cells = list[str]  # of one column, its title first


def cells(lines: Sequence[Line], names: Names, chosen: Sequence[str]) -> tuple[Cells, dict[TableColumn, Cells], Cells]:
    """Return the text of the table: implementations, the usual columns that are not empty or those chosen, verdicts."""
    filled = {
        column: [column.title, *map(column.text, lines)] for column in (_chosen(chosen, names) if chosen else COLUMNS)
    }
    filled = {column: texts for column, texts in filled.items() if chosen or any(texts[1:])}
    first = [
        "implementation",
        *(f"{MARKS[line.fastest]} {names.impl(line.row.case)}{' †' * bool(line.contradiction)}" for line in lines),
    ]
    return first, filled, ["verdict", *(verdict(line.row) for line in lines)]


def explain(lines: Sequence[Line], names: Names, dropped: Sequence[TableColumn] = ()) -> Iterator[str]:
    """Explain the marks of the table in footnotes, and what it does not show."""
    if any(line.row.case.quick for line in lines):
        yield QUICK
    if any(line.fastest == "tied" for line in lines):
        yield TIED
    unexpected = [(line.row, line.contradiction) for line in lines if line.contradiction]
    if unexpected:
        one = unexpected[0][1]
        yield (
            f"† {_and_more([row for row, _ in unexpected], names)}: speed-up {_factor(one.speedup)} over "
            f"{names.impl(one.over)} was measured by alternating the two; the separate times above would give "
            f"{_factor(one.separate)}"
        )
    yield from _separate(lines, names)
    yield from _winners(lines, names)
    if dropped:
        titles, columns = ", ".join(one.title for one in dropped), ",".join(one.name for one in dropped)
        yield f"no room for {titles}; to see them: a wider terminal, or python -m runner show columns={columns}"


NO_CONCLUSION = (
    "; no conclusion: one is contended, not converged or of fewer than 10 samples, or this machine has no certificate "
    "(python -m runner verify)"
)


def _separate(lines: Sequence[Line], names: Names) -> Iterator[str]:
    """Say which speed-ups compare two separate times, and why some of them have no conclusion."""
    said: dict[str, list[Row]] = {}
    for line in lines:
        if line.ratio and not line.ratio.paired:
            said.setdefault("" if math.isfinite(line.ratio.half) else NO_CONCLUSION, []).append(line.row)
    for why, rows in said.items():
        yield f"{_and_more(rows, names)}: the speed-up compares two separate times, not paired rounds{why}"


def _winners(lines: Sequence[Line], names: Names) -> Iterator[str]:
    """Say who is fastest by which time, where a problem has cases whose launches take longer than the GPU's work."""
    problems: dict[str, list[Line]] = {}
    for line in lines:
        if line.launch_bound and may_win(line.row) and line.value("pipelined_us"):
            problems.setdefault(line.row.case.problem, []).append(line)
    said: dict[str, list[Row]] = {}
    for some in problems.values():
        by_gpu = [names.impl(line.row.case) for line in some if line.fastest != "no"]
        high = min(_pipelined(line)[1] for line in some)
        by_caller = [names.impl(line.row.case) for line in some if _pipelined(line)[0] <= high]
        shared = by_gpu if set(by_gpu) == set(by_caller) else []
        text = f"by GPU time: {', '.join(by_gpu)}; by pipelined time (calls back to back): {', '.join(by_caller)}"
        text = f"by GPU time and by pipelined time (calls back to back): {', '.join(shared)}" if shared else text
        said.setdefault(f"fastest {text}", []).append(some[0].row)
    for text, rows in said.items():
        yield f"{names.heading(rows[0].case)}{_more(rows)}: {text}"


def _pipelined(line: Line) -> tuple[float, float]:
    """Return the interval of the time of one of many calls back to back."""
    us, percent = line.value("pipelined_us"), line.value("pipelined_pct") or 0.0
    return us * (1 - percent / 100), us * (1 + percent / 100)


def _dropped(filled: Mapping[TableColumn, Sequence[str]], room: int) -> list[TableColumn]:
    """Return the columns to leave out so that the others fit into ``room`` characters."""
    wanted = sum(_width(cells) + len(GAP) for cells in filled.values())
    dropped = set()
    for column in sorted(filled, key=lambda column: column.drop):
        if column.drop and wanted > room:
            dropped.add(column)
            wanted -= _width(filled[column]) + len(GAP)
    return [column for column in filled if column in dropped]


def _width(cells: Sequence[str]) -> int:
    return max(map(_cells, cells))


def _cells(text: str) -> int:
    """Return how many cells of a terminal ``text`` fills."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of the table: the first and the last cell to the left, the others to the right."""
    spaces = [" " * (width - _cells(cell)) for cell, width in zip(cells, widths, strict=True)]
    middle = [space + cell for cell, space in zip(cells[1:-1], spaces[1:-1], strict=True)]
    return " " + GAP.join([cells[0] + spaces[0], *middle, cells[-1]])


COUNTED = {  # verdicts whose reasons have figures that differ from case to case; by whether it ran on a CPU
    ("not_converged", True): "times have a wider interval than asked for (measure.benchmark.target_cpu_pct)",
    ("not_converged", False): "times have a wider interval than asked for (measure.benchmark.target_pct)",
    ("contended", True): "cases shared their CPUs with other processes; see cpu_wait_pct",
    ("contended", False): "cases ran while another process started or stopped using the GPU; see timer_drift_us",
}

NOT_CHECKED = "not checked, and never the fastest: it moves as many bytes as the workload must, and computes nothing"
UNCHECKED = "not checked, so none is called the fastest: give check=reference"  # a call of runner.bench
SIDE_EFFECTS = "it changed {}; its process ended, so that no other case is affected, and no ratio was taken in it"


NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def notes(rows: Sequence[Row], names: Names) -> list[str]:
    """Return a line for each reason why a case is not plainly ok, with the cases that share it."""
    shared: dict[tuple[str, str], list[tuple[str, Row]]] = {}  # by what the texts share beside their numbers
    counts: Counter[str] = Counter()

    def tell(text: str, row: Row) -> None:
        shared.setdefault((kind(text), source_line(row.detail)), []).append((text, row))

    for row in rows:
        if row.status == "ok" and (not_measured := row.metrics.get("not_measured")):
            tell(f"not measured: {not_measured}", row)
        if row.time_us is not None and row.metrics.get("correct") is None:
            tell(NOT_CHECKED if row.case.measures else UNCHECKED, row)
        if changed := row.metrics.get("side_effects"):
            tell(SIDE_EFFECTS.format(changed), row)
        if text := COUNTED.get((verdict(row), row.device == "cpu")):
            counts[f"{verdict(row)}: {{}} of {len(rows)} {text}"] += 1
        elif reason := why(row):
            tell(f"{verdict(row)}: {reason}", row)
        if row.time_us is not None and row.case.workload.fields.get("data") == "zeros":
            counts[
                f"data=zeros: {{}} of {len(rows)} times are for zeros; a GPU may be faster on them than on data"
            ] += 1
    found = []
    for some in shared.values():
        texts, alike = zip(*some, strict=True)
        traceback = [f"; its traceback: {file}" for file in alike[0].files if PurePath(file).name == ERROR]
        like_it = " like it" * (len(set(texts)) > 1)
        found.append(f"{_and_more(alike, names)}{like_it}: {texts[0]}{''.join(traceback)}")
    return [*found, *(text.format(count) for text, count in counts.items())]


def _and_more(rows: Sequence[Row], names: Names) -> str:
    """Return the first case and how many others there are."""
    return names.case(rows[0].case) + _more(rows)


def _more(rows: Sequence[Row]) -> str:
    return f" and {len(rows) - 1} more" if rows[1:] else ""


def kind(reason: str) -> str:
    """Return what ``reason`` shares with those that differ from it in their numbers alone."""
    return NUMBER.sub("", reason)


def row_text(row: Row, names: Names, reason: str) -> str:
    """Return the row in one line, for a log or a pipe."""
    words = [figure(row.time_us, "us"), interval(row.metrics.get("interval_pct"), "+-"), verdict(row), reason]
    return " ".join([f"{names.case(row.case)}:", *filter(None, words)])


def why(row: Row) -> str:
    """Return the reason, with the line of the implementation that raised; "" if there is none."""
    reason = str(row.reason or row.metrics.get("verdict_reason") or "")
    where = source_line(row.detail)
    return f"{reason} ({where})" if where else reason


def verdict(row: Row) -> str:
    """Return the verdict of a row that is ok, and the status of others."""
    return str(row.metrics.get("verdict", row.status)) if row.status == "ok" else row.status


def _factor(speedup: float | None) -> str:
    """Return a speed-up with two decimals; below 1/100 with two significant digits; "" for None."""
    if speedup is None:
        return ""
    return f"{speedup:.2f}x" if speedup >= 0.01 else f"{speedup:.{1 - math.floor(math.log10(speedup))}f}x"


def _rate(value: float | None, factor: float) -> str:
    """Return ``value * factor`` per second with an SI prefix, under a title with the unit; "" for None."""
    return "" if value is None else figure(value * factor, digits=3)


def _share(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.0f} %"


def _error(value: float | None) -> str:
    """Return an error relative to its tolerance. How far it is below a thousandth does not matter."""
    return "<0.001" if value is not None and 0 < value < 0.001 else figure(value, digits=3)


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
    from runner.store import run_folder

    files = [(row, PurePath(file)) for row in rows for file in row.files if PurePath(file).name == SUMMARY]
    found = []
    for row, file in files[:MOST_SUMMARIES]:
        others = [path.name for path in map(PurePath, row.files) if path.parent == file.parent and path != file]
        if not (path := run_folder.artifact(folder, str(file))):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").rstrip()
        found.append(f"\n{names.case(row.case)}: {file.parent.name}\n{text}")
        found.append(f"  in {folder / file.parent}" + (f": {', '.join(others)}" if others else ""))
    if len(files) > MOST_SUMMARIES:
        found.append(f"\n{len(files) - MOST_SUMMARIES} more summaries are in the folders of {folder / 'files'}")
    return found

"""While the grid runs: a progress bar with the time left, and the table growing above it."""

from __future__ import annotations

from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from runner.experiment.case import CaseRecord, Plan
from runner.experiment.results import Comparison, Row
from runner.report import terminal
from runner.report.derive import Names, lines

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
            self._console.file.write(f"[{self._done}/{self._total}] {terminal.plain(row, self._names)}\n")
            self._console.file.flush()

    def compared(self, rounds: Comparison) -> None:
        """The cases of one problem have been sampled side by side."""
        self._rounds.append(rounds)

    def notice(self, text: str) -> None:
        """Something the user should hear of now."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Group:
        shown = lines(list(self._rows), self._plan.baseline, list(self._rounds))[-LAST:]
        return Group(terminal.table(shown, self._names, self._console.width, self._plan.columns), self._progress)

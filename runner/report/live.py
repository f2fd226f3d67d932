"""What a running grid shows: a live table and a progress bar on a terminal, one line per row elsewhere."""

from collections import deque
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..findings.lines import derive_lines
from ..findings.names import Names
from ..findings.notes import kind_of, reason_of
from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.plan import Plan
from ..records.row import Row
from .case_table import row_text, styled_table
from .console import say

SHOWN = 12  # rows of the live table: it must fit a screen and be cheap to draw
REMEMBERED = 100  # rows that these are derived from: a speed-up needs the baseline's row of the same problem


class LiveReport:
    """Display of a running grid of ``total`` cases. Use it as a context manager.

    What cannot be printed, on a full disk or a closed terminal, is dropped: the journal has it. A closed pipe raises
    BrokenPipeError.
    """

    def __init__(self, plan: Plan, console: Console, total: int) -> None:
        self._plan, self._console, self._total = plan, console, total
        self._names = Names(plan.cases)
        self._rows: deque[Row] = deque(maxlen=REMEMBERED)
        self._rounds: deque[PairedRounds] = deque(maxlen=REMEMBERED)
        self._told: set[object] = set()  # reasons that have been printed, and their kinds
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
        self._task = self._progress.add_task("starting a worker", total=total)
        # Once a second: drawing takes some milliseconds of a core that a CPU case may need (logging_beside.py).
        self._live = Live(console=console, refresh_per_second=1, transient=True, get_renderable=self._draw)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def started(self, case: CaseRecord) -> None:
        """Show that ``case`` runs now."""
        self._progress.update(self._task, description=f"{case.workload.name} {self._names.impl(case)}")

    def done(self, row: Row) -> None:
        """Show ``row``."""
        self._rows.append(row)
        self._progress.advance(self._task)
        if not self._console.is_terminal:
            done, reason = int(self._progress.tasks[0].completed), reason_of(row)
            kind = kind_of(reason, row, self._names)
            text = row_text(row, self._names, "" if self._told & {reason, kind} else reason)
            self._told |= {reason, kind}
            self.notice(f"[{done}/{self._total}] {text}")

    def compared(self, rounds: PairedRounds, corrected: Sequence[Row] = ()) -> None:
        """Take ``rounds`` into account for the speed-ups, and show rows that they have ``corrected``."""
        self._rounds.append(rounds)
        for row in corrected:
            rows = (row if row.case.key == shown.case.key else shown for shown in self._rows)
            self._rows = deque(rows, maxlen=REMEMBERED)
            self.notice(f"corrected: {row_text(row, self._names, reason_of(row))}")

    def notice(self, text: str) -> None:
        """Print ``text`` on a line of its own."""
        try:
            if self._console.is_terminal:
                say(self._console, text)
            else:  # rich takes ten times as long
                print(text, file=self._console.file, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            pass

    def _draw(self) -> Group:
        shown = derive_lines(self._rows, self._plan.baseline, self._rounds)[-SHOWN:]
        drawn = styled_table(shown, self._names, self._console.width, self._plan.columns, with_footnotes=False)
        return Group(drawn, self._progress)

"""Readers of rows. Nothing here measures, and nothing here writes a result that the journal does not hold.

To add a reporter is to add a file ``<name>.py`` with its class, and ``conf/log/<name>.yaml``: then ``log=[<name>]``
chooses it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.text import Text

    from runner.experiment.results import Row
    from runner.store.session import Session

ASKED = ".logged"  # in the run's folder: names of the reporters that have published all its rows, one per line


class Reporter(Protocol):
    """Reports a finished run. A dataclass whose fields are those of its YAML."""

    def publish(self, folder: Path) -> Sequence[Text | str]:
        """Report the run in ``folder`` and return messages for the user. Raise nothing: no reporter can fail a run."""


def conclude(session: Session, chosen: Mapping[str, Reporter]) -> list[Row]:
    """Ask the terminal, ``rows.csv`` and the ``chosen`` reporters for their reports, and print what they return.

    A chosen reporter is not asked about a run without rows, nor twice about the same rows. Return the grid's rows.

    Raises:
        BrokenPipeError: nobody reads stdout any more. All reporters have been asked.

    """
    from runner.report.derive import lines
    from runner.report.frame import Csv
    from runner.report.terminal import Terminal, console

    (rows, rounds), out, folder, plan = session.grid(), console(), session.folder, session.plan
    file = folder / ASKED
    asked: list[str] = []
    with suppress(OSError, ValueError):
        asked += [] if session.rows else file.read_text(encoding="utf-8").split()
    terminal, every = Terminal(plan, rows, rounds, out.width), session.everything()
    reporters: dict[str, Reporter] = {
        "terminal": terminal,
        "csv": Csv(terminal.lines if len(every) == len(rows) else lines(every, plan.baseline, rounds)),
        **{name: reporter for name, reporter in chosen.items() if rows and name not in asked},
    }
    unprinted: OSError | None = None
    for name, reporter in reporters.items():
        messages = reporter.publish(folder)
        if name in chosen:
            asked.append(name)
            with suppress(OSError):
                file.write_text("\n".join(asked), encoding="utf-8")
        try:
            for message in messages if unprinted is None else ():
                out.print(message, markup=False, highlight=False, soft_wrap=True)
        except OSError as error:  # stdout is a closed pipe, or a file on a full disk
            unprinted = error
    if isinstance(unprinted, BrokenPipeError):
        raise unprinted
    if unprinted:
        with suppress(OSError):
            why = unprinted.strerror or unprinted
            print(f"the table cannot be printed: {why}. The results are in {folder}", file=sys.stderr, flush=True)
    return rows

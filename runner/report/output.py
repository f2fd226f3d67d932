"""Where results are written: a report beside the rows that it is of, and never over a file of the run itself."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..device.files import replace_file
from ..findings.flat import Records
from ..findings.run import Run
from ..records.bad_input import BadInput
from ..store import journal, run_folder
from .console import FILE_WIDTH, console, say
from .flat_formats import RECORDS
from .table import WRITERS, Table

if TYPE_CHECKING:
    from rich.text import Text

TABLE, ROWS = "table.md", "rows.csv"  # in the folder of a run
OWN = (
    *(journal.NAME, run_folder.PLAN, run_folder.CONFIGS, run_folder.ENVIRONMENT, run_folder.PUBLISHED),
    *("worker.log", "files", TABLE, ROWS),
)


def keep(path: Path, text: str) -> list[str]:
    """Write a file into the folder of a run, and return a message if that fails."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []


def slug(text: str) -> str:
    """Return ``text`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-.")[:120] or "chart"


def target(runs: Sequence[Run], output: Path | None, ending: str) -> Path:
    """Return the path of a report: ``output``, else ``report<ending>`` in the folder of the run.

    A report of several runs goes into the current folder, and the first of them names it. Raises as ``checked``.
    """
    if output or not runs[1:]:
        return checked(output or runs[0].folder / f"report{ending}")
    return Path(f"{slug('-'.join(runs[0].folder.resolve().parts[-2:]))}-and-{len(runs) - 1}-more{ending}")


def checked(path: Path) -> Path:
    """Return ``path``. Raises BadInput if it is a file of a run itself, or in the folder of its measurements."""
    there = Path(os.path.realpath(path.parent)) / path.name  # Path.resolve raises for a link to itself
    if any(each.name in OWN and (each.parent / journal.NAME).is_file() for each in (there, *there.parents)):
        raise BadInput(f"{path}: the run has written it; give another path")
    return path


def write_file(path: Path, content: str | bytes, option: str = "--output PATH") -> None:
    """Write ``content`` to ``path``, and make its folder. Raises BadInput, also if that is a file of a run itself.

    ``option``: which names another path.
    """
    try:
        checked(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode(errors="replace") if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}; give {option} elsewhere") from None


def give(content: str | bytes, output: Path | None) -> None:
    """Write ``content`` to the file ``output``, or print the text that it is. Raises BadInput as ``write_file``."""
    if output:
        write_file(output, content)
    else:
        print(content, end="")


def present(
    options: Namespace, text: Callable[[int], Text], table: Callable[[], Table], records: Callable[[], Records]
) -> None:
    """Print a result, or write it to ``options.output``: as ``options.format`` wants, in text for some width else.

    Raises BadInput as ``write_file``.
    """
    if options.format in RECORDS:
        give(RECORDS[options.format](records()), options.output)
    elif options.format != "table":
        give(WRITERS[options.format](table()), options.output)
    elif options.output or not (out := console()).is_terminal:
        give(f"{text(FILE_WIDTH).plain}\n", options.output)  # rich takes long for thousands of lines
    else:
        say(out, text(out.width))


def save(content: str, runs: Sequence[Run], output: Path | None, ending: str) -> int:
    """Write a report of ``runs`` where ``target`` says, print the path and return 0. Raises BadInput."""
    path = target(runs, output, ending)
    write_file(path, content)
    print(path)
    return 0

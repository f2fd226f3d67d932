"""Draw a figure of the same case over past runs and their commits, and mark from which run on it is different for good.

CONDITION chooses rows as --where of show does: workload=gelu, impl=triton, cols=1024, dtype=bfloat16,float32. Names are
the columns of rows.csv; workload. and impl. may be left out. Cases that differ, and devices that differ, are series of
their own. output_dir=FOLDER is where the runs are. Nothing is measured, and no folder of a run is changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.experiment.schema import BadInput, Parser

if TYPE_CHECKING:
    from runner.report.history import History

FORMATS = ("table", "md", "csv", "json")
DRAWN: Mapping[str, Mapping[str, int]] = {".png": {"scale": 2}, ".svg": {}}  # arguments by the ending of a file
OUTPUT_DIR = "output_dir="


def main(argv: Sequence[str]) -> int:
    """Print the figure or write it, and return 0. Raises BadInput."""
    asked = _parser().parse_intermixed_args(list(argv))
    conditions = [word for word in asked.conditions if not word.startswith(OUTPUT_DIR)]
    if stray := [word for word in conditions if "=" not in word]:
        raise BadInput(f"{stray[0]}: no condition; write workload=gelu impl=triton")
    given = [word.removeprefix(OUTPUT_DIR) for word in asked.conditions if word.startswith(OUTPUT_DIR)]

    from runner.report import history, past

    found = history.read(given[-1] if given else past.OUTPUTS, conditions, asked.column)
    for message in found.messages:
        print(f"runner: {message}", file=sys.stderr)
    images = {ending: path for ending, path in ((".png", asked.png), (".svg", asked.svg)) if path}
    for ending, path in images.items():
        _write(path, _image(found, ending))
    if not images or asked.format:
        _print(found, asked.format or "table")
    return 0


def _parser() -> Parser:
    usage = "runner history [CONDITION...] [output_dir=FOLDER] [options]"
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="runner history", usage=usage, description=__doc__, formatter_class=raw)
    parser.add_argument("conditions", nargs="*", metavar="CONDITION", help="such as workload=gelu or cols=256,1024")
    parser.add_argument("--column", default="time_us", metavar="NAME", help="a column of docs/columns.md (time_us)")
    parser.add_argument("--format", choices=FORMATS, help="table, the default, has a plot of characters")
    parser.add_argument("--png", metavar="FILE", help="write the figure there as an image")
    parser.add_argument("--svg", metavar="FILE", help="write the figure there as a drawing")
    return parser


def _print(found: History, form: str) -> None:
    from runner.report import formats, history_figure
    from runner.report.terminal import console

    if form == "table":
        out = console()
        for line in history_figure.text(found, out.width):
            if out.is_terminal:
                out.print(line, soft_wrap=True)
            else:  # of thousands of lines rich would take most of the time
                print(line.plain)
    elif form == "md":
        said = [note for series in found.series for note in history_figure.notes(series)]
        groups = history_figure.table(found, found.series)
        title = f"History of {found.series[0].column}"
        print(formats.markdown(formats.Sheet(title, history_figure.HEADS, groups, said, frozenset({0, 1, 4, 5}))))
    else:
        print(formats.RECORDS[form](history_figure.records(found)), end="")


def _image(found: History, ending: str) -> bytes:
    """Return the figure as PNG or SVG. Raises BadInput if vl-convert is not installed."""
    from runner.report import charts, history_figure

    draw = getattr(charts.convert(), f"vegalite_to_{ending[1:]}")
    image = draw(vl_spec=history_figure.chart(found), **DRAWN[ending])
    return image if isinstance(image, bytes) else str(image).encode()


def _write(path: str, content: bytes) -> None:
    from runner.store import run_folder

    try:
        run_folder.replace(Path(path), content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from None
    print(f"written: {path}")

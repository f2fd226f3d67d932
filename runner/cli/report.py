"""Make a report of past runs: a page, images, a table or a W&B Report. Measures nothing.

RUN is the folder of a run, or last, the default: the newest one under output_dir. Several runs stand side by side. No
folder of a run changes: the report goes into the current folder, or where --output says.

formats:
"""

# To add a format is to add a file ``runner/report/to_<format>.py``. Its docstring's first line is shown in the help. It
# may have ``arguments(parser)``, which adds options of its own to ``parser``. It has
# ``report(runs, options) -> int``, which writes the report of ``runs`` (at least one), prints where it is, and returns
# the exit code. ``options`` has ``output`` (a Path, or None), ``runs`` (as typed) and the format's own options. It
# raises BadInput for a mistake of the user. The module imports nothing slow at its top.

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from runner.experiment import schema
from runner.experiment.schema import BadInput, Parser

EXAMPLES = """
  python -m runner report html
  python -m runner report html outputs/<date>/<time>-<name> last --output both.html
  python -m runner report svg last --output figures
"""
OUTPUT_DIR = "output_dir="  # where last looks for runs, as on the command line of a run
RUN = "folder of a run, or last, the default: the newest under output_dir=outputs; several stand side by side"
PREFIX = "to_"  # of the modules of runner.report that are formats


def main(argv: Sequence[str]) -> int:
    """Write the report and return the exit code of its format. Raises BadInput."""
    formats = [name.removeprefix(PREFIX) for name in schema.names("runner.report") if name.startswith(PREFIX)]
    chosen = argv[0] if argv and argv[0] in formats else None
    if chosen is None:
        return _without_format(argv, formats)
    module = import_module(f"runner.report.{PREFIX}{chosen}")
    parser = Parser(prog=f"runner report {chosen}", description=module.__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUN)
    parser.add_argument("--output", type=Path, metavar="PATH", help="where to write; else the current folder")
    if add := getattr(module, "arguments", None):
        add(parser)
    options = parser.parse_args(argv[1:])

    from runner.report import past

    output_dir = past.OUTPUTS
    for word in [word for word in options.runs if word.startswith(OUTPUT_DIR)]:
        output_dir = word.removeprefix(OUTPUT_DIR)
        options.runs.remove(word)
    options.runs = options.runs or ["last"]
    code: int = module.report(past.read_all(options.runs, output_dir), options)
    return code


def _without_format(argv: Sequence[str], formats: Sequence[str]) -> int:
    """Print the help if it is asked for. Raises BadInput: there is no such format."""
    listed = "".join(f"  {name:<6} {_first_line(name)}\n" for name in formats)
    parser = Parser(
        prog="runner report",
        usage="runner report FORMAT [RUN...] [output_dir=FOLDER] [--output PATH] | FORMAT --help",
        description=f"{__doc__}{listed}",
        examples=EXAMPLES,
    )
    if argv and argv[0].startswith("-"):
        parser.parse_args(argv)
    allowed = schema.choices(argv[0], formats) if argv else f"one of: {', '.join(formats)}"
    raise BadInput(f"report {argv[0]}: no such format; {allowed}" if argv else f"report: give a format, {allowed}")


def _first_line(name: str) -> str:
    return (import_module(f"runner.report.{PREFIX}{name}").__doc__ or "").partition("\n")[0]

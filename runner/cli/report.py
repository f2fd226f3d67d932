"""Make a report of past runs: a page, images, a table or a W&B Report.

RUN is by default the newest run. Several runs stand side by side. Nothing is measured. The report goes into the folder
of the run, or into the current folder if there are several. --output gives another place.

Examples:
  python -m runner report html
  python -m runner report html outputs/<date>/<time>-<name> last --output both.html
  python -m runner report svg last --output figures

"""

# To add a format is to add a file ``runner/report/to_<format>.py``. Its docstring's first line is shown in the help. It
# may have ``arguments(parser)``, which adds options of its own to ``parser``. It has
# ``report(runs, options) -> int``, which writes the report of ``runs`` (at least one), prints where it is, and returns
# the exit code. ``options`` has ``output`` (a Path, or None), ``runs`` (as typed) and the format's own options. It
# raises BadInput for a mistake of the user.

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..records.bad_input import BadInput, choices
from ..records.options import option_summaries
from ._parser import Parser, read_runs
from .show import FORMATS

PREFIX = "to_"  # begins the names of modules of runner.report that are formats
TAKES = ("runs", "output_dir", "output")


def main(argv: Sequence[str]) -> int:
    """Write the report and return the exit code of its format. Raises BadInput."""
    summaries = option_summaries("report").items()
    formats = {name.removeprefix(PREFIX): text for name, text in summaries if name.startswith(PREFIX)}
    form = argv[0] if argv else ""
    if form.startswith("-"):
        arguments = {"FORMAT": "one of these, whose --help lists its own options:"}
        arguments |= {f"  {name}": text for name, text in formats.items()}
        usage = "FORMAT [RUN...] [output_dir=FOLDER]"
        Parser("report", __doc__, TAKES, arguments=arguments, usage=usage).parse(argv)
    if form not in formats:
        mistake = f"report {form}: no such format;" if form else "report: give a format,"
        if form == "last" or (form and Path(form).is_dir()):
            mistake = f"report {form}: write a format before the run, as in report html {form};"
        shown = f"; python -m runner show --format {form} writes the table so" * (form in FORMATS)
        raise BadInput(f"{mistake} {choices(form, formats)}{shown}")
    module = import_module(f"..report.{PREFIX}{form}", __package__)
    parser = Parser(f"report {form}", module.__doc__, TAKES)
    if add := getattr(module, "arguments", None):
        add(parser)
    options = parser.parse(argv[1:])
    code: int = module.report(read_runs(options), options)
    return code

"""Run compute-sanitizer on a case, for ``debug=sanitizer``."""

import re

from ..device import tools
from ..kernels.unsupported import Unsupported
from ..measure import CannotMeasure, MeasureContext, result
from ..records.case import Scalar

NAME = "compute-sanitizer"
LIMIT_S, GRACE_S = 240.0, 20.0  # within launcher.measure_limit_s
ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is an allocation, so that a read past its end is an error
TOTAL = re.compile(r"^========= ERROR SUMMARY: (\d+) errors?$", re.MULTILINE)  # another line counts unprinted errors
ERROR = re.compile(
    r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Warning)(\S.*)$(?:\n=========\s+(at .*)$)?", re.MULTILINE
)


class SanitizerError(Exception):
    """compute-sanitizer found errors. The message has their number, the first error, and the path of the log."""


def run_sanitizer(context: MeasureContext) -> dict[str, Scalar]:
    """Run the case of ``context`` under memcheck. Return the column ``sanitizer_errors``, which is 0.

    Raises SanitizerError if there are errors or the case fails, and Unsupported if the tool or the case cannot run.
    """
    if (program := tools.find_tool(NAME)) is None:
        raise Unsupported(f"debug=sanitizer needs {NAME}: it comes with the CUDA toolkit; put it on PATH")
    command = [program, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"]
    try:
        log = context.folder / "sanitizer.log"
        ended = tools.run_tool([*command, *context.command(calls=1)], log, LIMIT_S, ALONE, GRACE_S)
    except (CannotMeasure, OSError) as error:
        raise Unsupported(f"debug=sanitizer: {error}") from None
    totals = TOTAL.findall(ended.output)
    if count := sum(map(int, totals)):
        errors = f"{count} error{'s' if count > 1 else ''}"
        raise SanitizerError(f"{errors}, the first: {first_error(ended.output)}; all are in {log}")
    if ended.timed_out:
        raise Unsupported(f"{NAME} was not done after {LIMIT_S:g} s: take a smaller workload; see {log}")
    if not totals:
        raise Unsupported(f"{NAME} could not run: {first_error(ended.output)}; see {log}")
    written = result(context.folder)
    failure = str(written.get("error", "")) if written else "it ended early"
    if failure.startswith("unsupported"):  # perhaps only here, since torch without its cache cannot capture graphs
        raise Unsupported(f"debug=sanitizer: under {NAME} the case is {failure}")
    if failure and not failure.startswith("wrong: "):  # the worker itself finds a wrong result
        raise SanitizerError(f"no error in memory, but under {NAME} the case fails: {failure}; see {log}")
    return {"sanitizer_errors": 0}


def first_error(output: str) -> str:
    """Return the first error in the tool's ``output``, with its kernel."""
    match = ERROR.search(output)
    return " ".join(filter(None, match.groups())) if match else "it does not name one"

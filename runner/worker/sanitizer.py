"""``debug=sanitizer``: the case in a process of its own under compute-sanitizer, which checks each access to memory."""

from __future__ import annotations

import re

from runner.device import tools
from runner.experiment.case import Scalar
from runner.kernels.unsupported import Unsupported
from runner.measure import CannotMeasure, MeasureContext, result

NAME = "compute-sanitizer"
LIMIT_S, GRACE_S = 240.0, 20.0  # within launcher.measure_limit_s
ALONE = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"
}  # else an allocation has neighbours of its own, and hides what it misses
TOTAL = re.compile(r"^========= ERROR SUMMARY: (\d+) errors?$", re.MULTILINE)  # one more line is of those not printed
TOLD = re.compile(r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Warning)(\S.*)$")  # what belongs to it is indented
PLACE = re.compile(r"^=========\s+(at .*)$")


class SanitizerError(Exception):
    """compute-sanitizer has found something; the message has the number, the first, and where the others are."""


def look(context: MeasureContext) -> dict[str, Scalar]:
    """The case of ``context`` once more under memcheck: the column ``sanitizer_errors``, which is 0.

    Raises:
        SanitizerError: it is not 0, or the case fails there.
        Unsupported: there is no compute-sanitizer, it cannot look, or the case cannot be run there.

    """
    program = tools.find(NAME)
    if program is None:
        raise Unsupported(f"debug=sanitizer needs {NAME}: it comes with the CUDA toolkit; put it on PATH")
    words = [program, "--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"]
    try:
        log = context.folder / "sanitizer.log"
        ended = tools.run([*words, *context.command(calls=1)], log, LIMIT_S, ALONE, GRACE_S)
    except (CannotMeasure, OSError) as error:
        raise Unsupported(f"debug=sanitizer: {error}") from None
    totals = TOTAL.findall(ended.said)
    if found := sum(map(int, totals)):
        raise SanitizerError(
            f"{found} error{'s' if found > 1 else ''}, the first: {first(ended.said)}; all are in {log}"
        )
    if ended.late:
        raise Unsupported(f"{NAME} was not done after {LIMIT_S:g} s: take a smaller workload; see {log}")
    if not totals:
        raise Unsupported(f"{NAME} could not look: {first(ended.said)}; see {log}")
    failed = _failed(context)
    if failed.startswith("unsupported"):  # it may be so there alone: torch without its cache captures no graph
        raise Unsupported(f"debug=sanitizer: under {NAME} the case is {failed}")
    if failed and not failed.startswith("wrong: "):  # which the worker will find for itself
        raise SanitizerError(f"no error in memory, but under {NAME} the case fails: {failed}; see {log}")
    return {"sanitizer_errors": 0}


def first(said: str) -> str:
    """The first thing told, and in which kernel it was."""
    lines = said.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if told := TOLD.match(line):
            place = PLACE.match(below)
            return f"{told[1]} {place[1]}" if place else told[1]
    return "it does not say what"


def _failed(context: MeasureContext) -> str:
    """What the case in that process has come to, if it has failed."""
    done = result(context.folder)
    return str(done.get("error", "")) if done else "it has ended before its end"

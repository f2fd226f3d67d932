"""Check of the messages of a worker."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..device.used_paths import FILES
from ..records import untrusted
from ..records.case import CaseRecord
from ..records.paired_rounds import PairedRounds
from ..records.row import Phase, Row

MESSAGES = ({"environment"}, {"phase"}, {"full"}, {"rounds"}, {"prepared"}, {"row", "spoiled", "calibrations"})
PRECOMPILED = {"precompile_s"}  # columns that precompiling may give
RUNNING = {"inputs", "reference", "build", "check", "measure"}  # phases of a case
MOST_PHASES = 12  # messages of a case besides its measurements: twice inputs, build, check, build, check, measure


@dataclass
class Due:
    """The messages that a worker may send now: it is in ``phase``, and runs ``case`` if there is one."""

    phase: Phase = "start"
    case: CaseRecord | None = None
    fresh: bool = True  # whether this is the worker's first case
    timed: Collection[str] = ()  # keys of the cases that it can compare
    entered: int = 0  # messages about phases of ``case`` so far


def read_message(line: bytes, due: Due) -> dict[str, Any]:
    """Return the message in ``line``, with a row or paired rounds as an object.

    A case can write to the channel of its worker. So a message counts only if it is due from that case in that phase,
    and its content is valid. Raises ValueError otherwise.
    """
    try:
        message = untrusted.parse(line)
        message = _due(message, due) if {*message} in MESSAGES else None
    except (AttributeError, KeyError, TypeError) as error:  # a part is missing or has another type
        raise ValueError(str(error)) from None
    if message is None:
        raise ValueError("not due")
    return message


def _due(message: Any, due: Due) -> dict[str, Any] | None:
    """Return ``message`` as ``read_message`` does, or None if it is not due."""
    case = due.case
    match due.phase, message:
        case "start", {"environment": dict()}:
            return {**message}
        case "build", {"prepared": dict(columns)} if case is None:
            valid = columns.keys() <= PRECOMPILED and all(isinstance(value, float) for value in columns.values())
            return {**message} if valid else None
        case "compare", {"rounds": dict(record)}:
            rounds = PairedRounds.from_record(record)
            compared = {*rounds.batches_us, *rounds.instruments, *rounds.wrong}
            return {"rounds": rounds} if compared <= {*due.timed} else None
        case before, {"phase": str(phase)} if before == phase == "compare" or {before, phase} <= RUNNING:
            due.entered += 1  # each gives the case a new time limit
            return {**message} if due.entered <= MOST_PHASES + 2 * len(case.measures if case else ()) else None
        case "inputs", {"full": str()} if not due.fresh:
            return {**message}
        case before, {"row": dict(record), "spoiled": bool()} if case and before in RUNNING:
            row, numbers = Row.from_record(record, case), message["calibrations"].values()
            observed = all(path == FILES or path.startswith("/") for path in row.fingerprint)  # and no digests
            if observed and all(isinstance(number, int | float) for number in numbers):
                return {**message, "row": row}
    return None

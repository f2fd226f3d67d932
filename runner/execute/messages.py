"""What a worker may say, and when: the one place where its messages are checked.

A case can write to the channel of its worker. So a message counts only if it is due from that case in that phase, and
holds what it should.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.results import Comparison, Phase, Row

MOST_BYTES = 2**27  # of a message: a row with all of its samples has some 10 MB
PRECOMPILED = {"precompile_s"}  # columns that compiling ahead may give
ROUNDS = 2  # a case begins again after an out-of-memory
STEPS = 6  # phases of a case that is measured once: inputs, build, check, build, check, measure


@dataclass
class Due:
    """What the parent waits for in ``phase``, about ``case`` if there is one."""

    phase: Phase = "start"
    case: CaseRecord | None = None
    fresh: bool = True  # the worker has run no case before
    timed: Collection[str] = ()  # keys of the cases that it can compare
    entered: int = 0  # messages about phases of ``case`` so far


@dataclass(frozen=True)
class Environment:
    """A worker is ready, and describes its libraries and its device."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Entered:
    """The case has entered a phase."""

    phase: Phase


@dataclass(frozen=True)
class Full:
    """The worker cannot take the case; ``why`` says what earlier cases have left in it."""

    why: str


@dataclass(frozen=True)
class Done:
    """The case has its row. A ``spoiled`` worker must not run another one."""

    row: Row
    spoiled: bool
    calibrations: Mapping[str, float]


@dataclass(frozen=True)
class Prepared:
    """The case is compiled; the columns about that."""

    columns: Mapping[str, Scalar]


Message = Environment | Entered | Full | Done | Prepared | Comparison


def read(line: bytes, due: Due) -> Message:
    """Return the message in ``line``. Raises ValueError if it is not what is ``due``."""
    try:
        found = _message(orjson.loads(line), due)
    except (AttributeError, KeyError, TypeError) as error:  # a part is missing, or of another type
        raise ValueError(str(error)) from None
    if found is None:
        raise ValueError("not due")
    return found


def _message(message: object, due: Due) -> Message | None:
    match due.phase, message:
        case "start", {"environment": dict(facts)}:
            return Environment(facts)
        case "compare", {"phase": "compare"}:
            return _entered("compare", due)
        case "compare", {"rounds": dict(record)}:
            rounds = Comparison.from_record(record)
            return rounds if {*rounds.batches_us, *rounds.instruments} <= {*due.timed} else None
        case "build", {"prepared": dict(columns)} if due.case is None:
            sound = columns.keys() <= PRECOMPILED and all(isinstance(one, float) for one in columns.values())
            return Prepared(columns) if sound else None
        case (("inputs" | "build" | "check" | "measure"), _) if due.case is not None:
            return _about_case(message, due, due.case)
    return None


def _about_case(message: object, due: Due, case: CaseRecord) -> Message | None:
    match message:
        case {"phase": ("inputs" | "build" | "check" | "measure") as phase}:
            return _entered(phase, due)
        case {"full": str(why)} if due.phase == "inputs" and not due.fresh:
            return Full(why)
        case {"row": dict(record), "spoiled": bool(spoiled), "calibrations": dict(calibrations)}:
            row = Row.from_record(record)
            known = all(isinstance(one, int | float) for one in calibrations.values())
            if row.case.key == case.key and known:
                return Done(replace(row, case=case, fingerprint={}), spoiled, calibrations)
    return None


def _entered(phase: Phase, due: Due) -> Entered | None:
    """Return None for one phase too many: each gives the case a new time limit."""
    due.entered += 1
    measures = len(due.case.measures) if due.case else 0
    return Entered(phase) if due.entered <= ROUNDS * (STEPS + measures) else None

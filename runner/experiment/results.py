"""Row: what became of one Case, whatever happened to it.

A row cannot lie: building one whose parts contradict each other raises ValueError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.columns import SERIES, TIMES

Status = Literal[
    "ok",  # checked and measured
    "wrong",  # ran, and disagrees with the float64 reference
    "unsupported",  # this combination does not exist here; the reason says what would make it exist
    "build_failed",  # could not be compiled or loaded
    "error",  # raised an exception
    "oom",  # out of memory
    "cuda_error",  # the GPU reported a fault; the worker was replaced
    "timeout",  # passed the limit of a phase; the worker was killed
    "crashed",  # the worker died
    "lost",  # in flight when the runner itself was killed
    "skipped",  # never started
]
ERROR = "error.txt"  # of a case's files: the traceback of what it raised
STATUSES: tuple[Status, ...] = get_args(Status)
HARMLESS: frozenset[Status] = frozenset({"ok", "unsupported", "skipped"})  # none of these fails a run

Phase = Literal["plan", "start", "inputs", "build", "check", "measure", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The outcome of one case.

    Raises:
        ValueError: a status without its reason, a time on a case that was not measured, or ``correct``
            contradicting the status.

    """

    case: CaseRecord
    status: Status
    reason: str = ""  # one line, as the user saw it; empty exactly when the status is ok
    device: str = ""  # what it ran on: "cpu", or the GPU's own name
    phase: Phase = "measure"  # how far it came
    metrics: Mapping[str, Scalar] = field(default_factory=dict)  # by COLUMNS
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by SERIES
    files: tuple[str, ...] = ()  # what measurements have kept, from the run's folder
    detail: str = ""  # traceback, or the tail of what the case itself printed
    fingerprint: Mapping[str, str] = field(
        default_factory=dict
    )  # what else the figures hold for: runner.store.fingerprint

    def __post_init__(self) -> None:
        if broken := self._broken_rule():
            raise ValueError(f"{self.case.label}: {broken}")

    def _broken_rule(self) -> str:
        if self.status not in STATUSES:
            return f"unknown status {self.status!r}"
        if (self.status == "ok") == bool(self.reason):
            return f"status {self.status} with reason {self.reason!r}; ok, and only ok, has none"
        names = {*self.metrics, *self.series}
        if self.status not in ("ok", "wrong") and (timed := sorted(names & {*TIMES, *SERIES})):
            return f"{self.status}, and yet timed: {', '.join(timed)}"
        if (self.metrics.get("correct") is False) != (self.status == "wrong"):
            return f"correct={self.metrics.get('correct')} in a row of status {self.status}"
        return ""

    @property
    def time_us(self) -> float | None:
        """The time reports rank by: on the GPU if it ran there, else by the host's clock."""
        value = self.metrics.get("gpu_us", self.metrics.get("wall_us"))
        return None if value is None else float(value)

    @property
    def failed(self) -> bool:
        """True if this row makes the run's exit code 1."""
        return self.status not in HARMLESS

    def to_record(self) -> dict[str, object]:
        """The row as JSON-ready values; ``from_record`` reads it back."""
        return {
            "case": self.case.to_record(),
            "key": self.case.key,
            "status": self.status,
            "reason": self.reason,
            "device": self.device,
            "phase": self.phase,
            "metrics": dict(self.metrics),
            "series": dict(self.series),
            "files": list(self.files),
            "detail": self.detail,
            "fingerprint": dict(self.fingerprint),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Row:
        """A row as ``to_record`` wrote it; the key is derived, so it is not read, nor is what a journal adds."""
        values = {name: record[name] for name in _FIELDS if name in record}
        values["files"] = tuple(record.get("files", ()))  # type: ignore[arg-type]
        return cls(case=CaseRecord.from_record(record["case"]), **values)  # type: ignore[arg-type]


_FIELDS = [field.name for field in fields(Row) if field.name != "case"]


@dataclass(frozen=True)
class Comparison:
    """Ten batch means of each case; the n-th of all were taken at one time, and their ratio is of that moment."""

    batches_us: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by the cases' keys
    instruments: Mapping[str, str] = field(default_factory=dict)  # likewise
    reason: str = ""  # why there are none

    def to_record(self) -> dict[str, object]:
        """As JSON-ready values; ``from_record`` reads it back."""
        batches = {key: list(batches) for key, batches in self.batches_us.items()}
        return {"batches_us": batches, "instruments": dict(self.instruments), "reason": self.reason}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Comparison:
        """The inverse of ``to_record``; unknown fields are left out."""
        return cls(record["batches_us"], record["instruments"], record["reason"])  # type: ignore[arg-type]


SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)  # in the name of what holds one
ASSIGNED = re.compile(rf"(\w*(?:{SECRET.pattern})\w*)=.+", re.IGNORECASE | re.DOTALL)
SHORTEST = 6  # characters: what is shorter stands in too many places by chance
INSTEAD = "<redacted>"


def redact(text: str) -> str:
    """``text`` without the value of any environment variable whose name says that it is secret."""
    for name, value in os.environ.items() if text else ():
        if len(value) >= SHORTEST and SECRET.search(name):
            text = text.replace(value, INSTEAD)
    return text


def kept(text: str, head: int = 4000, tail: int = 16_000) -> str:
    """``text`` as a row keeps it: redacted, and of what is too long the beginning and the end.

    Surrogates, which stand for bytes that were no UTF-8, are escaped: no file takes them.
    """
    text = redact(text).encode(errors="backslashreplace").decode()
    return text if len(text) <= head + tail else f"{text[:head]} [...] {text[-tail:]}"


def redact_command(words: Sequence[str]) -> str:
    """A command line; also without what is given to fields with such names."""
    return redact(" ".join(ASSIGNED.sub(rf"\1={INSTEAD}", word) for word in words))

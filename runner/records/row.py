"""Row: the result of one case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from .case import CaseRecord, Scalar
from .columns import NUMBERS, SERIES, STATUSES, TIMES
from .figures import is_plausible_us
from .schema import check

Failed = Literal["wrong", "build_failed", "error", "oom", "cuda_error", "timeout", "crashed", "lost"]
Status = Literal["ok", "unsupported", "skipped", Failed]  # see STATUSES
ERROR = "error.txt"  # the traceback of a case's exception, among its files
NOT_RUN = "not run, only measured by "  # begins the reason of a case whose code was only compiled
HARMLESS: frozenset[Status] = frozenset({"ok", "unsupported", "skipped"})  # these do not fail a run

NUMBER = (int, float, type(None))  # types in JSON, where NaN is null
Phase = Literal["plan", "start", "inputs", "reference", "build", "check", "measure", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one case.

    Raises ValueError if its parts contradict each other: a status other than ok without a reason, a time of a case that
    was not measured, or ``correct`` beside another status.
    """

    case: CaseRecord
    status: Status
    reason: str = ""  # one line; empty exactly when the status is ok
    device: str = ""  # "cpu", or the name of the GPU
    phase: Phase = "measure"  # the last phase that it reached
    metrics: Mapping[str, Scalar] = field(default_factory=dict)  # by COLUMNS
    series: Mapping[str, Sequence[int | float]] = field(default_factory=dict)  # by SERIES
    files: tuple[str, ...] = ()  # artifacts, relative to the run's folder
    detail: str = ""  # traceback, or the end of what the case printed
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # see runner.store.fingerprint

    def __post_init__(self) -> None:
        broken = ""
        if self.status not in STATUSES:
            broken = f"unknown status {self.status!r}"
        elif (self.status == "ok") == bool(self.reason):
            broken = f"status {self.status} with reason {self.reason!r}; ok, and only ok, has none"
        elif self.status not in ("ok", "wrong") and (timed := {*self.metrics, *self.series} & {*TIMES, *SERIES}):
            broken = f"{self.status}, and yet timed: {', '.join(sorted(timed))}"
        elif (self.metrics.get("correct") is False) != (self.status == "wrong"):
            broken = f"correct={self.metrics.get('correct')} in a row of status {self.status}"
        if broken:
            raise ValueError(f"{self.case.label}: {broken}")

    @property
    def time_us(self) -> float | None:
        """The time that reports rank by: on the GPU if the case ran there, else by the host's clock."""
        value = self.metrics.get("gpu_us", self.metrics.get("wall_us"))
        return None if value is None else float(value)

    @property
    def only_compiled(self) -> bool:
        """Whether it was only compiled, for another GPU, and nothing else was asked for."""
        return self.reason.startswith(NOT_RUN) and len(self.case.measures) == 1

    @property
    def failed(self) -> bool:
        """Whether this row makes the run's exit code 1."""
        return self.status not in HARMLESS

    def found_wrong(self, reason: str) -> Self:
        """Return this row with the status "wrong", since the outputs were wrong in a later measurement."""
        metrics = {**self.metrics, "correct": False, "verdict": "wrong", "verdict_reason": reason}
        return replace(self, status="wrong", reason=reason, metrics=metrics)

    def to_record(self) -> dict[str, object]:
        """Return the row as JSON-ready values."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "case"}
        return {"case": self.case.to_record(), "key": self.case.key, **values}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], case: CaseRecord | None = None) -> Self:
        """Parse a record written by ``to_record``. Unknown fields are left out.

        ``case``: the case that it must be of, if that is known. Raises one of UNREADABLE if the record is none: a value
        has the wrong type, or the case is not the one of its key.
        """
        values: dict[str, Any] = {name: record[name] for name in cls.__slots__}
        values["case"] = case = case or CaseRecord.from_record(values["case"])
        check(cls, values)
        row = cls(**values | {"files": tuple(values["files"])})
        if record["key"] != case.key:
            raise ValueError(f"{case.label}: it has the key of another case")
        if odd := [name for name in row.metrics.keys() & NUMBERS if type(row.metrics[name]) not in NUMBER]:
            raise TypeError(f"{case.label}: {odd[0]}={row.metrics[odd[0]]!r} is not a number")
        spans_us = [row.time_us, *(value for name in {*SERIES} & {*row.series} for value in row.series[name])]
        if not all(map(is_plausible_us, spans_us)):
            raise ValueError(f"{case.label}: a time that no clock reads")
        return row

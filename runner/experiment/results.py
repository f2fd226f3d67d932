"""Row: the result of one case; Comparison: paired rounds of several; their text without secrets; their figures."""

from __future__ import annotations

import codecs
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.columns import INSTRUMENTS, NUMBERS, SERIES, TIMES
from runner.experiment.schema import check

Status = Literal[
    "ok",  # checked and measured
    "wrong",  # disagrees with the float64 reference
    "unsupported",  # does not exist here; the reason says what would make it exist
    "build_failed",  # could not be compiled or loaded
    "error",  # raised an exception
    "oom",  # out of memory
    "cuda_error",  # the GPU reported a fault; the worker was replaced
    "timeout",  # passed the limit of a phase; the worker was killed
    "crashed",  # the worker died
    "lost",  # in flight when the runner itself was killed
    "skipped",  # never started
]
ERROR = "error.txt"  # the traceback of a case's exception, among its files
STATUSES: tuple[Status, ...] = get_args(Status)
HARMLESS: frozenset[Status] = frozenset({"ok", "unsupported", "skipped"})  # these do not fail a run

NUMBER = (int, float, type(None))  # types in JSON, where NaN is null
Phase = Literal["plan", "start", "inputs", "build", "check", "measure", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one case.

    Raises:
        ValueError: its parts contradict each other: a status other than ok without a reason, a time of a case that
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
    def failed(self) -> bool:
        """Whether this row makes the run's exit code 1."""
        return self.status not in HARMLESS

    def to_record(self) -> dict[str, object]:
        """Return the row as JSON-ready values."""
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
    def from_record(cls, record: Mapping[str, Any], case: CaseRecord | None = None) -> Row:
        """Return the row that ``to_record`` made ``record`` of. Unknown fields are left out.

        ``case``: the case that it must be of, if that is known. Raises one of UNREADABLE if the record is none: a value
        has the wrong type, or the case is not the one of its key.
        """
        values: dict[str, Any] = {name: record[name] for name in cls.__slots__ if name in record}
        values["case"] = case = case or CaseRecord.from_record(values["case"])
        check(cls, values)
        row = cls(**values | {"files": tuple(values["files"])})
        if record["key"] != case.key:
            raise ValueError(f"{case.label}: it has the key of another case")
        if odd := [name for name in row.metrics.keys() & NUMBERS if type(row.metrics[name]) not in NUMBER]:
            raise TypeError(f"{case.label}: {odd[0]}={row.metrics[odd[0]]!r} is no number")
        return row


@dataclass(frozen=True)
class Comparison:
    """Ten batch means of each case. The n-th ones of all cases were measured together, so their ratio is valid.

    In a race, a case that was shown to be slower than the fastest has an instrument, but no batches.
    """

    batches_us: Mapping[str, Sequence[int | float]] = field(default_factory=dict)  # by the cases' keys
    instruments: Mapping[str, str] = field(default_factory=dict)  # by the cases' keys
    reason: str = ""  # why there are no batches
    calls: Mapping[str, int] = field(default_factory=dict)  # timed in the rounds, by the cases' keys; {}: an older run

    @property
    def dropped(self) -> set[str]:
        """Keys of the cases that a race has shown to be slower than the fastest."""
        return self.instruments.keys() - self.batches_us.keys()

    def to_record(self) -> dict[str, object]:
        """Return the comparison as JSON-ready values."""
        batches = {key: list(batches) for key, batches in self.batches_us.items()}
        calls = {"calls": dict(self.calls)} if self.calls else {}
        return {"batches_us": batches, "instruments": dict(self.instruments), "reason": self.reason, **calls}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Comparison:
        """Return the comparison that ``to_record`` made ``record`` of. Unknown fields are left out.

        Raises one of UNREADABLE if it is none: a value has the wrong type, or a case has no known instrument or as many
        batches as the others.
        """
        values = {name: record[name] for name in ("batches_us", "instruments", "reason")}
        values["calls"] = record.get("calls", {})
        check(cls, values)
        found = cls(**values)
        lengths = {len(batches) for batches in found.batches_us.values()}
        instruments = {found.instruments[key] for key in found.batches_us}
        if len(lengths) > 1 or lengths & {0, 1} or not instruments <= {*INSTRUMENTS.split(" | ")}:
            raise ValueError("a case has no known instrument, or not as many batches as the others")
        return found


SECRET = re.compile(  # in the name of a variable or a field
    r"key|token|secret|passw|credential|webhook|database_?url|(?<![a-z])(?:pat|pwd|auth|dsn)(?![a-z])", re.IGNORECASE
)
PLACE = re.compile(r"(?:sock|file|path|dir|home|host|hostname|user|username)$", re.IGNORECASE)  # ends a name: no secret
ASSIGNED = re.compile(rf"(\w*(?:{SECRET.pattern})\w*)=(.+)", re.IGNORECASE | re.DOTALL)
PASSWORD = re.compile(r"(://[^\s/:@]*:)([^\s/]+)(?=@)")  # user:password@ in a URL
TOKEN = re.compile(  # of GitHub, Hugging Face, OpenAI and Anthropic, AWS; a JSON Web Token
    r"\b(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]*[A-Za-z0-9]{20,}[\w-]*|A[KS]IA[A-Z0-9]{16}\b|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
SHORTEST = 6  # characters of a secret: a shorter text occurs by chance
REDACTED = "<redacted>"


def redact(text: str) -> str:
    """Return ``text`` without secrets.

    These are the values of environment variables whose names say so, and each line of such a value; passwords in URLs,
    there and in ``text``; and what looks like a token.
    """
    for secret in _secrets(tuple(os.environ.items())) if text else ():
        text = text.replace(secret, REDACTED)
    return TOKEN.sub(REDACTED, PASSWORD.sub(rf"\1{REDACTED}", text))


@lru_cache(maxsize=1)
def _secrets(environment: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the secrets in ``environment``, the longest first: one may hold another."""
    secrets: set[str] = set()
    for name, value in environment:
        if is_secret(name, value):
            secrets |= {value, *map(str.strip, value.splitlines())}
        secrets.update(found[2] for found in PASSWORD.finditer(value))
    secrets -= {value for name, value in environment if name in ("USER", "LOGNAME", "HOSTNAME")}
    return sorted((secret for secret in secrets if len(secret) >= SHORTEST), key=len, reverse=True)


def is_secret(name: str, value: str) -> bool:
    """Return whether the name of a variable or a field says that ``value`` is secret. A path never is."""
    top = "/" + value[1:].partition("/")[0]
    is_path = value.startswith("/") and top != "/" and os.path.exists(top)  # a key may begin with a slash too
    return bool(SECRET.search(name)) and not PLACE.search(name) and not is_path


def redact_command(words: Sequence[str]) -> str:
    """Return a command line, redacted, also without the values of fields whose names say that they are secret."""

    def hidden(found: re.Match[str]) -> str:
        return f"{found[1]}={REDACTED if is_secret(*found.groups()) else found[2]}"

    return redact(" ".join(ASSIGNED.sub(hidden, word) for word in words))


def clip(text: str, head: int = 4000, tail: int = 16_000) -> str:
    """Return ``text`` for a row: redacted, and only its beginning and its end if it is long.

    Surrogates, which stand for bytes that are not UTF-8, are escaped, since JSON cannot hold them.
    """
    text = redact(text).encode(errors="backslashreplace").decode()
    return text if len(text) <= head + tail else f"{text[:head]} [...] {text[-tail:]}"


def printable(text: str) -> str:
    """Return ``text`` with ``?`` for line breaks, escape codes, and other characters that a terminal does not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


RISING = (  # units that follow one another in steps of 1000; of 1024 for KiB
    ("us", "ms", "s"),
    ("uJ", "mJ", "J", "kJ"),
    ("mW", "W", "kW"),
    ("kHz", "MHz", "GHz"),
    ("byte", "KiB", "MiB", "GiB", "TiB"),
    ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"),
    ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
    ("flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"),
    ("", "k", "M", "G", "T", "P", "E"),
)
UNITS = {unit: units for units in RISING for unit in units}
ENDS = {"us": "us", "s": "s", "pct": "%", "bytes": "byte", "gbps": "GB/s", "flops": "flop"}  # of names of columns
EXACT = 10**6  # counts below this are shown with all their digits


def figure(value: object, unit: str = "", digits: int = 4) -> str:
    """Return ``value``, which is in ``unit``, in the unit that suits it; "" for None, words as they are.

    Numbers without a unit get a prefix above 1000; small ones, such as errors, none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if not unit and isinstance(value, int) and abs(value) < EXACT:
        return str(value)
    units = UNITS.get(unit, (unit,))
    step, place = 1024 if "KiB" in units else 1000, units.index(unit)
    while place and 0 < abs(value) < 1:
        value, place = value * step, place - 1
    while place < len(units) - 1 and step <= float(f"{abs(value):.{digits}g}") < math.inf:
        value, place = value / step, place + 1
    text = f"{value:.{digits}g}"
    if "e+" in text:  # larger than the largest unit
        text = f"{value:.0f}"
    return f"{text} {'B' if units[place] == 'byte' else units[place]}".rstrip()


def unit_of(column: str) -> str:
    """Return the unit of a column of a measurement's table, which ends its name."""
    return ENDS.get(column.rpartition("_")[2], "")


def interval(percent: object, sign: str = "") -> str:
    """Return half the width of an interval, after ``sign``: ``0.2 %``, ``>100 %``; "" for None."""
    if not isinstance(percent, int | float):
        return ""
    return f"{sign}{percent:.1f} %" if percent <= 100 else ">100 %"


SIGNS = "signs"  # the name of this way to encode text, for ``errors=``
PLAIN = {"★": "*", "≈": "~", "†": "#", "±": "+-", "─": "-", "…": "...", "→": "->", "✓": "+", "✗": "x"}
PLAIN |= {"├": "|", "┤": "|", "●": "o", "○": ".", "◀": "<"}  # of a plot


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(SIGNS, _plain)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with plain signs for those that ``encoding`` lacks."""
    return text.encode(encoding or "utf-8", SIGNS).decode(encoding or "utf-8")

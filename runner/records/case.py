"""CaseRecord: one workload and one implementation, with everything a worker needs to repeat it."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import PurePath
from typing import Any, Self

from .figures import as_typed, as_words
from .schema import check
from .settings import Settings

Scalar = str | int | float | bool | None

WORKTREE = "worktree"  # the revision whose code is that of the files as they are
ARGS = "args."  # begins the fields of an implementation that are arguments of its function: ``args.BLOCK``
RECORDED = re.compile(r"(.+)@([0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)  # a field rev: its name as typed, and its commit

OTHERWISE = re.compile(r"\de[-+]|NaN|Infinity")  # floats that json and orjson may write in two ways
BENCH = "bench"  # the measurement of what ``runner.bench`` has measured in a program, for which there is no command


def _json(record: object) -> str:
    """Return ``record`` as orjson writes it with sorted keys: keys of cases depend on it, also where torch is alone."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _written(record) if OTHERWISE.search(text) else text


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_written(name)}:{_written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    if not isfinite(value):
        return "null"
    digits, _, exponent = repr(value).partition("e")
    if exponent == "-05":
        return "-" * (value < 0) + "0.0000" + digits.removeprefix("-").replace(".", "")
    return f"{digits}e{int(exponent):{'+' if exponent[0] == '+' else ''}}" if exponent else digits


@dataclass(frozen=True)
class Choice:
    """One option of one config group, with its fields: ``gelu`` and ``{"rows": 8192, ...}``."""

    name: str
    fields: Mapping[str, Scalar]

    def to_record(self) -> dict[str, Scalar]:
        """Return ``{"name": ..., field: value, ...}``, as in the YAML."""
        return {"name": self.name, **self.fields}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Parse a record written by ``to_record``. Raises one of UNREADABLE if it is malformed."""
        fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in record.items()}
        if isinstance(given := fields.get("args"), Mapping):  # of an implementation's YAML
            del fields["args"]
            fields |= {f"{ARGS}{name}": value for name, value in given.items()}
        name = str(fields.pop("name"))
        hash(tuple(fields.values()))  # readers collect the values of a field in a set
        return cls(name, fields)

    @property
    def revision(self) -> str:
        """The name of the git revision of its code, as it was typed; "" for the working tree."""
        rev = str(self.fields.get("rev") or "")
        match = RECORDED.fullmatch(rev)
        return match[1] if match else rev

    @property
    def commit(self) -> str:
        """The commit of that revision; "" for the working tree."""
        match = RECORDED.fullmatch(str(self.fields.get("rev") or ""))
        return match[2] if match else ""

    @property
    def options(self) -> dict[str, Scalar]:
        """The fields without the revision."""
        return {name: value for name, value in self.fields.items() if name != "rev"}

    @property
    def arguments(self) -> dict[str, Scalar]:
        """The arguments of its function that are given: ``{"BLOCK": 64}``."""
        return {name.removeprefix(ARGS): value for name, value in self.fields.items() if name.startswith(ARGS)}

    @cached_property
    def text(self) -> str:
        """The record as JSON with sorted keys: equal choices have equal texts."""
        return _json(self.to_record())


@dataclass(frozen=True)
class CaseRecord:
    """A workload, an implementation of it, what to measure, and under which settings."""

    workload: Choice
    impl: Choice
    measures: tuple[Choice, ...]
    settings: Settings
    replica: int = 0  # the number of this repetition, which runs in a process of its own

    @property
    def ranks(self) -> int:
        """The number of processes that run it together, each on a GPU if it runs on GPUs; 0: it knows no ranks."""
        ranks = self.workload.fields.get("ranks")
        return ranks if isinstance(ranks, int) else 0

    @cached_property
    def key(self) -> str:
        """16 hex digits that are the same wherever and whenever the same case is composed."""
        return hashlib.sha256(_json(self.to_record()).encode(errors="surrogatepass")).hexdigest()[:16]

    @cached_property
    def shared_key(self) -> str:
        """The key that it has as replica 0: the same for all replicas of a case."""
        return self.key if self.replica == 0 else replace(self, replica=0).key

    @cached_property
    def problem(self) -> str:
        """What cases must share to be compared: all but the implementation and the replica, as JSON."""
        return _json({name: value for name, value in self.to_record().items() if name not in ("impl", "replica")})

    @property
    def of_program(self) -> bool:
        """Whether ``runner.bench`` has measured it in a program, so that no command does."""
        return any(measure.name == BENCH for measure in self.measures)

    @property
    def own_file(self) -> str:
        """The absolute path of the user's file with its workload; "" for a workload of this project."""
        path = self.workload.fields.get("path")
        return "" if path is None else os.path.abspath(str(path))

    @property
    def user_files(self) -> set[str]:
        """The user's files that its workload and its implementation name; none for what this project ships."""
        words = [self.workload.fields.get("path"), *(self.impl.fields.get(name) for name in ("path", "of"))]
        named = (str(word).partition(":") for word in words if word)
        return {path for path, colon, _ in named if colon or PurePath(path).suffix}

    @property
    def label(self) -> str:
        """``gelu/triton rows=8192 cols=4096 ...``, for people."""
        fields = {name: value for name, value in self.workload.fields.items() if value is not None}
        return " ".join([f"{self.workload.name}/{self.impl_label}", *as_words(fields)])

    @property
    def impl_label(self) -> str:
        """The implementation with its fields and revision, ``compiled(of=naive, mode=default)@main``."""
        options = {name.removeprefix(ARGS): value for name, value in self.impl.options.items() if value is not None}
        fields = ", ".join(as_words(options))
        revision = f"@{self.impl.revision}" if self.impl.revision else ""
        return f"{self.impl.name}({fields}){revision}" if fields else f"{self.impl.name}{revision}"

    @property
    def flat(self) -> dict[str, Scalar]:
        """Its fields by their names on the command line; a git revision as it was typed."""
        impl = {f"impl.{name}": value for name, value in self.impl.fields.items()}
        impl["impl.rev"] = self.impl.revision or WORKTREE
        workload = {f"workload.{name}": value for name, value in self.workload.fields.items()}
        return {**workload, **impl, **{name: value for name, value in self.flat_settings.items() if name != "measure"}}

    @cached_property
    def flat_settings(self) -> dict[str, Scalar]:
        """Everything but the workload, the implementation and the replica, by the names of the command line."""
        values = {**vars(self.settings), "measure": [choice.name for choice in self.measures]}
        for choice in self.measures:
            values |= {f"measure.{choice.name}.{name}": value for name, value in choice.fields.items()}
        return {name: as_typed(value) if isinstance(value, list | tuple) else value for name, value in values.items()}

    def with_settings(self, **changed: Any) -> Self:
        """Return the case with other values of the settings that are given."""
        return replace(self, settings=replace(self.settings, **changed))

    def to_record(self) -> dict[str, object]:
        """Return the case as JSON-ready values."""
        choices = {"workload": self.workload.to_record(), "impl": self.impl.to_record()}
        measures = [measure.to_record() for measure in self.measures]
        return {**choices, "measures": measures, "replica": self.replica, **self.settings.to_record()}

    @classmethod
    def from_record(cls, record: Any, choices: Sequence[Choice] | None = None) -> Self:
        """Parse a record written by ``to_record``. Raises one of UNREADABLE if it is malformed.

        ``choices``: a table in which the record has the places of its implementation and its measurements.
        """
        choice = Choice.from_record if choices is None else choices.__getitem__
        rest = dict(record)
        workload, impl = Choice.from_record(rest.pop("workload")), choice(rest.pop("impl"))
        measures, replica = tuple(map(choice, rest.pop("measures"))), rest.pop("replica")
        check(cls, {"replica": replica})
        return cls(workload, impl, measures, Settings.from_record(rest), replica)

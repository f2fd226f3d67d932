"""Case: one problem of the grid, frozen and complete. Everything a worker needs to repeat it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from runner.experiment.schema import BadInput, choices

Scalar = str | int | float | bool | None

_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True)
class Choice:
    """One option of one config group, with its fields: ``gelu`` and ``{"rows": 8192, ...}``."""

    name: str
    fields: Mapping[str, Scalar]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def to_record(self) -> dict[str, Scalar]:
        """``{"name": ..., field: value, ...}``, the shape it has in the YAML."""
        return {"name": self.name, **self.fields}

    @classmethod
    def from_record(cls, record: Mapping[str, Scalar]) -> Choice:
        """The inverse of ``to_record``."""
        return cls(str(record["name"]), {key: value for key, value in record.items() if key != "name"})

    @cached_property
    def text(self) -> str:
        """The record as JSON with sorted keys and no spaces."""
        return _json(self.to_record())


@dataclass(frozen=True)
class CaseRecord:
    """A workload, an implementation of it, what to observe, and on what device, from which seed."""

    workload: Choice
    impl: Choice
    measures: tuple[Choice, ...]
    device: str  # auto | cpu | cuda
    seed: int
    time_wrong: bool = False  # measure even where the result is wrong
    replica: int = 0  # the same again, in a process of its own
    debug: str | None = None  # an aid of runner.experiment.case, under which it does not run as it would by itself

    @property
    def devices(self) -> int:
        """How many GPUs its worker sees: the workload's field ``devices``, 1 without one."""
        return int(self.workload.fields.get("devices") or 1)

    @cached_property
    def key(self) -> str:
        """16 hex digits that are the same wherever and whenever the same case is composed."""
        text = self._text(f'"impl":{self.impl.text},', f'"replica":{self.replica},')
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def problem(self) -> str:
        """What two cases must share to be compared: everything but the implementation and the process."""
        return self._text("", "")

    def _text(self, impl: str, replica: str) -> str:
        """``to_record`` as JSON with sorted keys; put together here, for a grid has cases by the thousand."""
        measures = ",".join(measure.text for measure in self.measures)
        wrong = "true" if self.time_wrong else "false"
        debug = f'"debug":"{self.debug}",' if self.debug else ""  # left out, a case has the key it has always had
        head, tail = f'{debug}"device":"{self.device}",', f'"seed":{self.seed},"time_wrong":{wrong},'
        return f'{{{head}{impl}"measures":[{measures}],{replica}{tail}"workload":{self.workload.text}}}'

    @property
    def label(self) -> str:
        """``gelu/triton rows=8192 cols=4096 ...``, for people."""
        fields = " ".join(f"{name}={value}" for name, value in self.workload.fields.items())
        return f"{self.workload.name}/{self.impl_label} {fields}"

    @property
    def impl_label(self) -> str:
        """The implementation with the fields that tell it from its namesakes: ``compiled(of=naive, mode=default)``."""
        fields = ", ".join(f"{name}={value}" for name, value in self.impl.fields.items() if value is not None)
        return f"{self.impl.name}({fields})" if fields else self.impl.name

    @property
    def settings(self) -> dict[str, Scalar]:
        """What of a case is neither workload nor implementation, replica apart, by the keys of the command line."""
        given = {"device": self.device, "seed": self.seed, "debug": self.debug, "time_wrong": self.time_wrong}
        fields = {f"measure.{one.name}.{name}": value for one in self.measures for name, value in one.fields.items()}
        whole = {**given, "measure": [one.name for one in self.measures], **fields}
        return {name: _word(value) for name, value in whole.items()}

    def to_record(self) -> dict[str, object]:
        """The case as JSON-ready values; ``from_record`` reads it back."""
        return {
            "workload": self.workload.to_record(),
            "impl": self.impl.to_record(),
            "measures": [measure.to_record() for measure in self.measures],
            "device": self.device,
            "seed": self.seed,
            "time_wrong": self.time_wrong,
            "replica": self.replica,
            "debug": self.debug,
        }

    @classmethod
    def from_record(cls, record: object) -> CaseRecord:
        """The inverse of ``to_record``."""
        assert isinstance(record, Mapping)
        values = dict(record)
        return cls(
            workload=Choice.from_record(values.pop("workload")),
            impl=Choice.from_record(values.pop("impl")),
            measures=tuple(Choice.from_record(measure) for measure in values.pop("measures")),
            **values,
        )


def _word(value: object) -> Scalar:
    """A list as it is typed; what is read from JSON has lists where the class behind an option has tuples."""
    return value if isinstance(value, Scalar) else f"[{','.join(map(str, value))}]"  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Which rows of an earlier run still count."""

    of: str | None = None  # the run's folder, or "last"; None: start afresh
    whole: bool = False  # the grid is that of the folder
    retry: tuple[str, ...] = ()  # statuses that do not count
    trust: bool = False  # go on in a folder that others can write to
    ignore: tuple[str, ...] = ()  # what may have changed since then: parts of runner.store.fingerprint


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole grid, validated, and what to do with its rows."""

    cases: tuple[CaseRecord, ...]  # the cases of one problem stand together
    name: str  # of the run's folder
    baseline: str | None  # what speed-ups are against, by its label; None: torch, else the first, of right ones
    output_dir: str
    launcher: Choice
    log: tuple[Choice, ...]  # reporters beside the terminal and rows.csv
    columns: tuple[str, ...] = ()  # shown on the terminal; empty: the usual ones
    resume: Resume = Resume()


class Labels:
    """Labels of the implementations ``impls``; the same one may occur several times."""

    def __init__(self, impls: Iterable[Choice]) -> None:
        self._impls = {impl.text: impl for impl in impls}
        self._varying = varying(self._impls.values())

    def label(self, impl: Choice) -> str:
        """Its name, and the fields in which those of that name differ."""
        shown = [f"{name}={value}" for name, value in impl.fields.items() if name in self._varying[impl.name]]
        return f"{impl.name}({', '.join(shown)})" if shown else impl.name

    def check(self, baseline: str | None) -> None:
        """Raise BadInput unless ``baseline`` is None or means one of them."""
        if baseline is not None and not any(is_called(impl, baseline) for impl in self._impls.values()):
            known = choices(baseline, map(self.label, self._impls.values()))
            raise BadInput(f"baseline={baseline}: not in this sweep; {known}")


def is_called(impl: Choice, label: str) -> bool:
    """Whether ``label`` is the name of ``impl``, or that with some of its fields in their order, as a table has them.

    A table of a part of the grid shows fewer fields: of which grid the label is, does not matter.
    """
    name, _, fields = label.partition("(")
    if name != impl.name or not fields.endswith(")"):
        return label == impl.name
    rest = f"{fields[:-1]}, "
    for field, value in impl.fields.items():
        rest = rest.removeprefix(f"{field}={value}, ")
    return not rest


def varying(chosen: Iterable[Choice]) -> dict[str, set[str]]:
    """For each option, the fields that take several values."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for choice in chosen:
        options.setdefault(choice.name, []).append(choice.fields)
    return {option: several(fields) for option, fields in options.items()}


def several(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The fields that take several values in those of ``records`` that have them."""
    values: dict[str, set[Any]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, set()).add(value)
    return {name for name, some in values.items() if len(some) > 1}


Aid = Literal[
    "launch_blocking",  # each kernel is waited for, so that a fault is raised where it was launched
    "interpret",  # Triton kernels run as Python, on the CPU
    "sanitizer",  # the case once more under compute-sanitizer, before it is checked
    "anomaly",  # autograd names the operation whose backward makes NaN
]
DEBUG_ENVIRONMENT: Mapping[
    str, Mapping[str, str]
] = {  # of the processes in which such cases run, before they import torch
    "launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},  # read when CUDA starts
    "interpret": {"TRITON_INTERPRET": "1"},  # read when a kernel is decorated, Triton's own among them
}
DEBUG_VERDICT = "debug"


def debug_environment(aid: str | None) -> Mapping[str, str]:
    """What ``aid`` wants in the environment of a process from its beginning."""
    return DEBUG_ENVIRONMENT.get(aid or "", {})


def interpreted() -> bool:
    """Whether Triton kernels run as Python in this process, the runner's own timestamps and spins among them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def useless_debug(aid: str | None, device: str) -> str:
    """Why ``aid`` can find nothing on ``device`` (auto | cpu | cuda), and what to type; "" if it can."""
    if aid == "interpret" and device != "cpu":
        return "interpret runs Triton kernels on the CPU; add device=cpu"
    if aid in ("launch_blocking", "sanitizer") and device == "cpu":
        return f"{aid} looks at kernels on a GPU; leave out device=cpu, on a machine that has one"
    return ""

"""Resolved configs → a Plan of frozen Cases, or one sentence about the first thing wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from runner import impl, options, schema
from runner.case import Case, Choice, Plan
from runner.errors import BadInput, choices
from runner.row import COLUMNS, DERIVED

GROUPS = ("workload", "impl", "measure", "launcher", "log")
ROOMS = {"workload": "models", "measure": "runner.measure"}  # where the class behind an option is


@dataclass(frozen=True, kw_only=True)
class Globals:
    """The fields of config.yaml itself."""

    name: str | None
    device: Literal["auto", "cpu", "cuda"]
    seed: Annotated[int, "at least 0"]
    baseline: str | None
    time_wrong: bool
    replicas: Annotated[int, "at least 1"]
    output_dir: str
    default_axes: bool

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"\w[\w.+-]{0,99}", self.name):
            raise ValueError("name: it names a folder, so give letters, digits and . _ + -, 100 at most")


def plan(configs: Sequence[Mapping[str, Any]]) -> Plan:
    """The grid of ``configs``, the cases of one point side by side, doubles dropped. Raises BadInput."""
    settings = [_globals(config) for config in configs]
    once = list({case.key: case for case in map(_case, configs, settings)}.values())
    order = {point: index for index, point in enumerate(dict.fromkeys(case.point for case in once))}
    once.sort(key=lambda case: order[case.point])
    cases = [replace(case, replica=replica) for replica in range(settings[0].replicas) for case in once]
    first, config = settings[0], configs[0]
    names = list(dict.fromkeys(case.impl.name for case in cases))
    if first.baseline is not None and first.baseline not in names:
        raise BadInput(f"baseline={first.baseline}: not in this sweep; {choices(first.baseline, names)}")
    workloads = dict.fromkeys(case.workload.name for case in cases)
    return Plan(
        cases=tuple(cases),
        name=first.name or "+".join(workloads),
        baseline=first.baseline,
        output_dir=first.output_dir,
        launcher=_raw(config.get("launcher"), "launcher"),
        log=_raw(config.get("log"), "log"),
        columns=_columns((config.get("measure") or {}).get("columns") or []),
    )


def _columns(asked: Sequence[str]) -> tuple[str, ...]:
    """What the table on the terminal shows beside names and verdicts; empty: the usual columns."""
    known = {**COLUMNS, **DERIVED}
    for name in asked if isinstance(asked, list) else [str(asked)]:
        if name not in known:
            raise BadInput(f"measure.columns: no such column {name!r}; {choices(str(name), known)}")
    return tuple(asked)


def _globals(config: Mapping[str, Any]) -> Globals:
    values = {name: value for name, value in config.items() if name not in (*GROUPS, "axes")}
    return schema.build(Globals, values, "")


def _case(config: Mapping[str, Any], settings: Globals) -> Case:
    measures = dict(config.get("measure") or {})
    measures.pop("columns", None)
    if not measures:
        raise BadInput("measure: nothing to observe; choose at least one, as in measure=benchmark")
    return Case(
        workload=_choice("workload", config.get("workload")),
        impl=_implementation(config.get("impl")),
        measures=tuple(_choice("measure", values, f"measure.{name}") for name, values in measures.items()),
        device=settings.device,
        seed=settings.seed,
        time_wrong=settings.time_wrong,
    )


def _choice(group: str, values: object, where: str = "") -> Choice:
    """One option of ``group`` as its class takes it."""
    raw = _raw(values, where or group)
    try:
        cls = options.find(ROOMS[group], raw.name)
    except LookupError as error:
        raise BadInput(f"{where or group}={raw.name}: {error}") from None
    fields = {name: value for name, value in raw.fields.items() if name != "axes"}
    return Choice(raw.name, schema.record(schema.build(cls, fields, where or group)))


def _implementation(values: object) -> Choice:
    raw = _raw(values, "impl")
    return Choice(raw.name, schema.record(impl.build(raw)))


def _raw(values: object, where: str) -> Choice:
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise BadInput(f"{where}: no option chosen; type {where}=<option>, listed by python -m runner --help")
    return Choice.from_record(values)

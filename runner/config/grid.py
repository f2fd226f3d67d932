"""Resolved configs → a Plan of frozen Cases, or one sentence about the first thing wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

from runner import implementations
from runner.experiment import schema
from runner.experiment.case import Aid, CaseRecord, Choice, Labels, Plan, Resume, useless_debug
from runner.experiment.columns import COLUMNS, DERIVED
from runner.experiment.results import STATUSES
from runner.experiment.schema import BadInput, choices
from runner.measure import columns as measured_columns
from runner.store.fingerprint import PARTS

T = TypeVar("T")

GROUPS = ("workload", "impl", "measure", "launcher", "log")
OF_THE_RUN = ("name", "baseline", "replicas", "output_dir")  # of the fields below: no case has one of its own
FIELDS = {"measure": "benchmark: {...}", "resume": "of: last"}  # an example of each
MOST_SEED = 2**64 - 1  # that a generator of torch's takes
ROOMS = {"workload": "runner.models", "measure": "runner.measure"}  # where the class behind an option is
FIRST_LINE = "the first line of an experiment's YAML must be: # @package _global_"


@dataclass(frozen=True, kw_only=True)
class Globals:
    """The fields of config.yaml itself."""

    name: str | None
    device: Literal["auto", "cpu", "cuda"]
    seed: Annotated[int, "at least 0"]
    baseline: str | None
    time_wrong: bool
    debug: Aid | None
    replicas: Annotated[int, "at least 1"]
    output_dir: str
    default_axes: bool

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"\w[\w.+-]{0,99}", self.name):
            raise ValueError("name: it names a folder, so give letters, digits and . _ + -, 100 at most")
        if self.seed > MOST_SEED:
            raise ValueError(f"seed: {self.seed} is not allowed; give at most {MOST_SEED}")
        if why := useless_debug(self.debug, self.device):
            raise ValueError(f"debug: {why}")


@dataclass(frozen=True, kw_only=True)
class ResumeFields:
    """The fields of ``resume`` in config.yaml."""

    of: str | None
    retry: tuple[str, ...]
    ignore: tuple[str, ...]
    trust: bool

    def __post_init__(self) -> None:
        for name, given, allowed in (("retry", self.retry, STATUSES), ("ignore", self.ignore, PARTS)):
            for word in given:
                if word not in allowed:
                    raise ValueError(f"{name}: {word!r} is not allowed; {choices(word, allowed)}")


def plan(configs: Sequence[Mapping[str, Any]], cases: Sequence[CaseRecord] | None = None) -> Plan:
    """The grid of ``configs``, the cases of one problem side by side, doubles dropped. Raises BadInput.

    ``cases``, where given, are the grid, and the first of ``configs`` says what to do with it.
    """
    first, config = _globals(configs[0]), configs[0]
    if cases is None:
        cases = _cases(configs, first.replicas)
    Labels(case.impl for case in cases).check(first.baseline)
    workloads = dict.fromkeys(case.workload.name for case in cases)
    return Plan(
        cases=tuple(cases),
        name=first.name or "+".join(workloads),
        baseline=first.baseline,
        output_dir=first.output_dir,
        launcher=_raw(config.get("launcher"), "launcher"),
        log=tuple(_raw(values, f"log.{name}") for name, values in _node(config, "log").items()),
        columns=_columns(config.get("columns") or []),
        resume=resume(_node(config, "resume")),
    )


def check(config: Mapping[str, Any]) -> None:
    """Raise BadInput if the case of ``config``, what is to be shown of it, or what it goes on with, is not valid."""
    _case(config, _globals(config), {})
    _columns(config.get("columns") or [])
    resume(_node(config, "resume"))


def resume(fields: Mapping[str, Any]) -> Resume:
    """The node ``resume``. Raises BadInput."""
    return Resume(**schema.record(schema.build(ResumeFields, fields, "resume")))


def validate(cases: Iterable[CaseRecord]) -> None:
    """Raise BadInput unless every case, read from an earlier run, is one that could be asked for today."""
    seen: set[str] = set()
    for case in cases:
        _choice("workload", case.workload.to_record())
        if case.impl.text not in seen:
            _implementation(case.impl.to_record())
        for measure in case.measures:
            if measure.text not in seen:
                _choice("measure", measure.to_record(), f"measure.{measure.name}")
        seen |= {case.impl.text, *(measure.text for measure in case.measures)}


def _cases(configs: Sequence[Mapping[str, Any]], replicas: int) -> list[CaseRecord]:
    settings: dict[str, Globals] = {}
    parts: dict[str, Any] = {}
    found = []
    for config in configs:
        values = {name: value for name, value in config.items() if name not in (*GROUPS, "axes", "resume", "columns")}
        found.append(_case(config, _once(settings, repr(values), partial(_globals, values)), parts))
    for name in OF_THE_RUN:
        several = list(dict.fromkeys(str(getattr(one, name)) for one in settings.values()))
        if len(several) > 1:
            raise BadInput(f"{name}={','.join(several)}: the whole run has one; give one of them")
    once = list({case.key: case for case in found}.values())
    order = {problem: index for index, problem in enumerate(dict.fromkeys(case.problem for case in once))}
    once.sort(key=lambda case: order[case.problem])
    again = [replace(case, replica=replica) for replica in range(1, replicas) for case in once]
    return [*once, *again]


def _node(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The fields under ``name``, none if it is null. Raises BadInput if a YAML says that it is something else."""
    fields = config.get(name) or {}
    if not isinstance(fields, Mapping):
        raise BadInput(f"{name}: {fields!r} is not allowed; give fields, as in {name}: {{{FIELDS[name]}}}")
    return fields


def _once(known: dict[str, T], text: str, make: Callable[[], T]) -> T:
    """What ``make`` gives, kept by ``text``: cases by the thousand share most of their parts."""
    if text not in known:
        known[text] = make()
    return known[text]


def _columns(asked: Sequence[str]) -> tuple[str, ...]:
    """What the table on the terminal shows beside names and verdicts; empty: the usual columns."""
    known = [*COLUMNS, *chain(*measured_columns().values()), *DERIVED] if asked else []
    for name in asked if isinstance(asked, list) else [str(asked)]:
        if not isinstance(name, str) or name not in known:
            raise BadInput(f"columns: no such column {name!r}; {choices(str(name), known)}")
    return tuple(asked)


def _globals(config: Mapping[str, Any]) -> Globals:
    values = {name: value for name, value in config.items() if name not in (*GROUPS, "axes", "resume", "columns")}
    if "experiment" in values:
        raise BadInput(f"experiment: no such field; {FIRST_LINE}")
    return schema.build(Globals, values, "")


def _case(config: Mapping[str, Any], settings: Globals, known: dict[str, Any]) -> CaseRecord:
    """``known`` holds the parts of earlier cases."""
    measures = dict(_node(config, "measure"))
    if not measures:
        raise BadInput("measure: nothing to observe; choose at least one, as in measure=benchmark")
    implementation = config.get("impl")
    return CaseRecord(
        workload=_choice("workload", config.get("workload")),
        impl=_once(known, f"impl {implementation!r}", lambda: _implementation(implementation)),
        measures=_once(known, f"measure {measures!r}", lambda: _measures(measures)),
        device=settings.device,
        seed=settings.seed,
        time_wrong=settings.time_wrong,
        debug=settings.debug,
    )


def _measures(chosen: Mapping[str, Any]) -> tuple[Choice, ...]:
    if stray := [name for name, values in chosen.items() if not isinstance(values, Mapping)]:
        wanted = "a YAML of conf/measure begins with the line # @package measure.<name>"
        raise BadInput(f"measure.{stray[0]}: is of no measurement; {wanted}")
    return tuple(_choice("measure", values, f"measure.{name}") for name, values in chosen.items())


def _choice(group: str, values: object, where: str = "") -> Choice:
    """One option of ``group`` as its class takes it."""
    raw = _raw(values, where or group)
    try:
        cls = _class(ROOMS[group], raw.name)
    except LookupError as error:
        raise BadInput(f"{group}={raw.name}: {error}") from None
    fields = {name: value for name, value in raw.fields.items() if name != "axes"}
    return Choice(raw.name, schema.record(schema.build(cls, fields, where or group)))


_class = cache(schema.find)


def _implementation(values: object) -> Choice:
    raw = _raw(values, "impl")
    return Choice(raw.name, schema.record(implementations.build(raw)))


def _raw(values: object, where: str) -> Choice:
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise BadInput(f"{where}: no option chosen; type {where}=<option>, listed by python -m runner --help")
    return Choice.from_record(values)

"""Turn resolved configs into a Plan of frozen cases, or report the first mistake in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

import runner.implementations as implementations
from runner.experiment import schema
from runner.experiment.case import ARGS, Aid, CaseRecord, Choice, Labels, Plan, Resume, useless_debug
from runner.experiment.results import STATUSES
from runner.experiment.schema import BadInput, choices
from runner.measure import check_columns, side_by_side
from runner.store.fingerprint import PARTS

AXES = ("axes", "one_at_a_time", "on_cpu")  # what an experiment sweeps
# They have no single value.
NODES = ("workload", "impl", "measure", "launcher", "log", "shapes", "resume", "columns", "conclusion", *AXES)
# They choose no cases.
RUN_FIELDS = ("launcher", "log", "resume", "columns", "name", "question", "conclusion", "baseline", "output_dir")
ONE_VALUE = ("name", "question", "baseline", "replicas", "output_dir")  # of Globals, the same in all cases
EXAMPLES = {"measure": "benchmark: {...}", "resume": "of: last"}
ANALYSIS = "{name: growth, over: workload.size}"  # an item of ``conclusion``
BESIDE = ("axes", "shape", "quick")  # in an option's YAML, no fields: default sweep, order of sizes, values if quick
MOST_CASES = 100_000  # a grid takes 30 us a case to compose, and 0.2 s or more a case to run
MOST_SEED = 2**64 - 1  # the largest that torch's generators take
ROOMS = {"workload": "runner.models", "measure": "runner.measure"}  # where the class of an option is
FIRST_LINE = "the first line of an experiment's YAML must be: # @package _global_"


@dataclass(frozen=True, kw_only=True)
class Globals:
    """The fields of config.yaml itself."""

    name: str | None
    question: schema.Line | None
    device: Literal["auto", "cpu", "cuda"]
    seed: Annotated[int, "at least 0"]
    baseline: str | None
    time_wrong: bool
    debug: Aid | None
    quick: bool
    deterministic_algorithms: bool
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


def is_run_field(key: str) -> bool:
    """Return whether ``key`` is one of ``RUN_FIELDS`` or within one."""
    return key.partition(".")[0] in RUN_FIELDS


def is_field(key: str) -> bool:
    """Return whether ``key`` begins with a group or a field of config.yaml."""
    return key.partition(".")[0] in (*NODES, *schema.rules_of(Globals))


def plan(configs: Sequence[Mapping[str, Any]], cases: Sequence[CaseRecord] | None = None) -> Plan:
    """Return the grid of ``configs``: the cases of one problem stand together, and each case occurs once.

    If ``cases`` are given, they are the grid, and the first config gives the settings. Raises BadInput.
    """
    config = configs[0]
    first = _globals(_single_values(config))
    if cases is None:
        cases = _cases(configs, first.replicas)
    Labels(case.impl for case in cases).check(first.baseline)
    workloads = dict.fromkeys(case.workload.name for case in cases)
    return Plan(
        cases=tuple(cases),
        name=first.name or "+".join(workloads),
        baseline=first.baseline,
        output_dir=first.output_dir,
        launcher=_option(config.get("launcher"), "launcher"),
        log=tuple(_option(values, f"log.{name}") for name, values in _node(config, "log").items()),
        columns=_columns(config),
        question=first.question,
        conclusion=_conclusion(config),
        resume=_resume(config),
    )


def check_references(cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput unless each ``reference`` of a measurement that compares implementations is in the grid."""
    labels = Labels(case.impl for case in cases)
    named = {(one.name, one.fields.get("reference")) for case in cases for one in case.measures}
    known = side_by_side() if any(reference for _, reference in named) else {}
    for name, reference in sorted((name, str(reference)) for name, reference in named if reference and name in known):
        labels.check(reference, f"measure.{name}.reference")


def validate(cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput unless every one of ``cases``, read from an earlier run, is valid today."""
    for workload in {case.workload.text: case.workload for case in cases}.values():
        _choice("workload", workload.to_record())
    for impl in {case.impl.text: case.impl for case in cases}.values():
        _implementation(impl.to_record())
    for measure in {one.text: one for case in cases for one in case.measures}.values():
        _choice("measure", measure.to_record(), f"measure.{measure.name}")


def check_count(count: int, asked: str) -> None:
    """Raise BadInput if ``asked`` makes more than ``MOST_CASES``."""
    if count > MOST_CASES:
        raise BadInput(f"{asked}: {count:,} cases; a run takes at most {MOST_CASES:,}, so give fewer values")


def _cases(configs: Sequence[Mapping[str, Any]], replicas: int) -> list[CaseRecord]:
    known: dict[tuple[str, str], Any] = {}
    unique = list({case.key: case for case in (_case(config, known) for config in configs)}.values())
    _check_arguments([impl for (make, _), impl in known.items() if make == _implementation.__name__], unique)
    settings = [value for value in known.values() if isinstance(value, Globals)]
    for name in ONE_VALUE:
        several = list(dict.fromkeys(str(getattr(one, name)) for one in settings))
        if len(several) > 1:
            raise BadInput(f"{name}={','.join(several)}: the whole run has one; give one of them")
    order = {problem: index for index, problem in enumerate(dict.fromkeys(case.problem for case in unique))}
    unique.sort(key=lambda case: order[case.problem])
    check_count(len(unique) * replicas, f"replicas={replicas}")
    again = [replace(case, replica=replica) for replica in range(1, replicas) for case in unique]
    return [*unique, *again]


def _case(config: Mapping[str, Any], known: dict[tuple[str, str], Any]) -> CaseRecord:
    """Build a case. ``known`` keeps its parts, since the cases of a grid share most of them."""

    def once(make: Callable[[Any], Any], values: object) -> Any:
        key = (make.__name__, repr(values))
        if key not in known:
            known[key] = make(values)
        return known[key]

    settings = once(_globals, _single_values(config))
    workload, impl = _choice("workload", config.get("workload")), once(_implementation, config.get("impl"))
    return CaseRecord(
        workload=workload,
        impl=once(_with_its_arguments, (workload, impl)) if impl.arguments else impl,
        measures=once(_measures, _node(config, "measure")),
        device=settings.device,
        seed=settings.seed,
        time_wrong=settings.time_wrong,
        debug=settings.debug,
        quick=settings.quick,
        deterministic_algorithms=settings.deterministic_algorithms,
    )


def _single_values(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in NODES}


def _globals(values: Mapping[str, Any]) -> Globals:
    if "experiment" in values:
        raise BadInput(f"experiment: no such field; {FIRST_LINE}")
    return schema.build(Globals, values, "")


def _resume(config: Mapping[str, Any]) -> Resume:
    return Resume(**schema.record(schema.build(ResumeFields, _node(config, "resume"), "resume")))


def _node(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the fields under ``name``; none if it is null. Raises BadInput if a YAML file has a single value there."""
    fields = config.get(name) or {}
    if not isinstance(fields, Mapping):
        raise BadInput(f"{name}: {fields!r} is not allowed; give fields, as in {name}: {{{EXAMPLES[name]}}}")
    return fields


def _columns(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the table on the terminal; empty means the usual ones. Raises BadInput."""
    asked = config.get("columns") or []
    return check_columns(asked if isinstance(asked, list) else [asked]) if asked else ()


def _conclusion(config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the analyses, whose names and fields are not checked yet. Raises BadInput."""
    given, found = config.get("conclusion") or [], []
    for one in given if isinstance(given, list) else [given]:
        try:
            found.append(Choice.from_record(one))
        except schema.UNREADABLE:
            raise BadInput(f"conclusion: {one!r} is no analysis; give its name and fields, as in {ANALYSIS}") from None
    return tuple(found)


def _measures(chosen: Mapping[str, Any]) -> tuple[Choice, ...]:
    if not chosen:
        raise BadInput("measure: nothing to observe; choose at least one, as in measure=benchmark")
    if stray := [name for name, values in chosen.items() if not isinstance(values, Mapping)]:
        wanted = "a YAML of conf/measure begins with the line # @package measure.<name>"
        raise BadInput(f"measure.{stray[0]}: belongs to no measurement; {wanted}")
    return tuple(_choice("measure", values, f"measure.{name}") for name, values in chosen.items())


def _choice(group: str, values: object, prefix: str = "") -> Choice:
    """Check an option of ``group`` against its class. Raises BadInput."""
    option = _option(values, prefix or group)
    try:
        cls = _class(ROOMS[group], option.name)
    except LookupError as error:
        raise BadInput(f"{group}={option.name}: {error}") from None
    fields = {name: value for name, value in option.fields.items() if name not in BESIDE}
    return Choice(option.name, schema.record(schema.build(cls, fields, prefix or group)))


_class = cache(schema.find)


def _implementation(values: object) -> Choice:
    return implementations.checked(_option(values, "impl"))


def _with_its_arguments(case: tuple[Choice, Choice]) -> Choice:
    """Return the implementation of a workload and an implementation without the arguments that its function lacks."""
    own = _arguments(*case)
    _, impl = case
    fields = {
        name: value for name, value in impl.fields.items() if not name.startswith(ARGS) or name[len(ARGS) :] in own
    }
    return Choice(impl.name, fields)


def _arguments(workload: Choice, impl: Choice) -> list[str]:
    """Return the arguments that the function of ``impl`` has for ``workload``, beside that workload's options."""
    cls: Any = _class(ROOMS["workload"], workload.name)
    options = schema.build(cls, workload.fields, "workload").options()
    return [name for name in implementations.build(impl).arguments(workload.name) if name not in options]


def _check_arguments(asked: Sequence[Choice], cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput if an argument that is ``asked`` for is one of no function of ``cases``."""
    used = {name for case in cases for name in case.impl.arguments}
    for name in (name for impl in asked for name in impl.arguments if name not in used):
        given = {impl.name for impl in asked if name in impl.arguments}
        pairs = {(case.workload.name, case.impl.text): case for case in cases if case.impl.name in given}
        there = [one for case in pairs.values() for one in _arguments(case.workload, case.impl)]
        whose = ", ".join(dict.fromkeys(f"{case.workload.name}/{case.impl.name}" for case in pairs.values()))
        known = choices(name, there) if there else "there are none: keyword arguments with a default are meant"
        raise BadInput(f"impl.args.{name}: no such argument of {whose}; {known}")


def _option(values: object, where: str) -> Choice:
    """Return an option that is not checked yet. Raises BadInput if it has no name."""
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise BadInput(f"{where}: no option chosen; type {where}=<option>, listed by python -m runner --help")
    return Choice(values["name"], {name: value for name, value in values.items() if name != "name"})

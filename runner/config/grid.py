"""Turn resolved configs into a Plan of frozen cases, or report the first mistake in one line."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

from .. import implementations
from ..measure.columns import check_columns, compared_quantities
from ..records.bad_input import BadInput, choices
from ..records.case import ARGS, CaseRecord, Choice
from ..records.debugging import device_under, useless_debug
from ..records.labels import Labels
from ..records.options import option_class
from ..records.plan import NAME, NAME_RULE, Plan, Resume
from ..records.schema import UNREADABLE, OneLine, build, rules_of, to_fields
from ..records.settings import NAMES, Settings
from ..subject.own_workload import bound_to, workload_class, workload_of
from ..tasks import own_file

AXES = ("axes", "pairs", "one_at_a_time", "on_cpu")  # what an experiment sweeps
# They have no single value.
NODES = ("workload", "impl", "measure", "launcher", "log", "shapes", "resume", "columns", "conclusion", *AXES)
# They choose no cases.
RUN_FIELDS = ("launcher", "log", "resume", "columns", "name", "question", "conclusion", "baseline", "output_dir")
ONE_VALUE = ("name", "question", "baseline", "replicas", "output_dir")  # fields of Globals, equal in all cases
ANALYSIS = "{name: growth, over: workload.size}"  # an item of ``conclusion``
BESIDE = ("axes", "shape", "quick")  # in an option's YAML, no fields: default sweep, order of sizes, values if quick
MOST_CASES = 100_000  # a grid takes 30 us a case to compose, and 0.2 s or more a case to run
MOST_NAMES = 4  # most workloads in the name of a run's folder
PACKAGES = {"workload": "models", "measure": "measure"}  # where the class of an option is
FIRST_LINE = "the first line of an experiment's YAML must be: # @package _global_"


@dataclass(frozen=True, kw_only=True)
class Globals(Settings):
    """The fields of config.yaml itself: settings of a case, and settings of the run."""

    name: str | None
    question: OneLine | None
    baseline: str | None
    replicas: Annotated[int, "at least 1"]
    output_dir: Annotated[str, "that is not empty"]
    default_axes: bool

    def __post_init__(self) -> None:
        if self.name is not None and not NAME.fullmatch(self.name):
            raise ValueError(f"name: {NAME_RULE}")
        if reason := useless_debug(self.debug, device_under(self.debug, self.device)):
            raise ValueError(f"debug: {reason}")


def is_run_field(key: str) -> bool:
    """Return whether ``key`` is one of ``RUN_FIELDS`` or within one."""
    return key.partition(".")[0] in RUN_FIELDS


def is_field(key: str) -> bool:
    """Return whether ``key`` begins with a group or a field of config.yaml."""
    return key.partition(".")[0] in (*NODES, *rules_of(Globals))


def plan_grid(configs: Sequence[Mapping[str, Any]], cases: Sequence[CaseRecord] | None = None) -> Plan:
    """Return the plan for ``configs``: the cases of a problem are neighbors, and each case occurs once.

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
        name=first.name or ("+".join(workloads) if len(workloads) <= MOST_NAMES else f"{len(workloads)}-workloads"),
        baseline=first.baseline,
        output_dir=first.output_dir,
        launcher=_option(config.get("launcher"), "launcher"),
        log=tuple(_option(values, f"log.{name}") for name, values in _node(config, "log").items()),
        columns=_columns(config),
        question=first.question,
        conclusion=_conclusion(config),
        resume=build(Resume, _node(config, "resume"), "resume"),
    )


def check_references(cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput unless each ``reference`` of a measurement that compares implementations is in the grid."""
    labels = Labels(case.impl for case in cases)
    named = {(measure.name, measure.fields.get("reference") or "") for case in cases for measure in case.measures}
    references = sorted((name, str(reference)) for name, reference in named if reference)
    comparing = compared_quantities() if references else {}
    for name, reference in references:
        if name in comparing:
            labels.check(reference, f"measure.{name}.reference")


def validate(cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput unless every one of ``cases``, read from an earlier run, is valid today."""
    for workload in {case.workload.text: case.workload for case in cases}.values():
        _choice("workload", workload.to_record())
    for impl in {case.impl.text: case.impl for case in cases}.values():
        _implementation(impl.to_record())
    for measure in {measure.text: measure for case in cases for measure in case.measures}.values():
        _choice("measure", measure.to_record(), f"measure.{measure.name}")


def check_count(count: int, request: str) -> None:
    """Raise BadInput if ``count`` cases, which ``request`` makes, are too many."""
    if count > MOST_CASES:
        raise BadInput(f"{request}: {count:,} cases; a run takes at most {MOST_CASES:,}, so give fewer values")


def _cases(configs: Sequence[Mapping[str, Any]], replicas: int) -> list[CaseRecord]:
    known: dict[tuple[str, str], Any] = {}
    unique = list({case.key: case for case in (_case(config, known) for config in configs)}.values())
    _check_arguments([impl for (make, _), impl in known.items() if make == _implementation.__name__], unique)
    settings = [value for value in known.values() if isinstance(value, Globals)]
    for name in ONE_VALUE:
        values = dict.fromkeys(str(getattr(each, name)) for each in settings)
        if len(values) > 1:
            raise BadInput(f"{name}={','.join(values)}: the whole run has one; give one of them")
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
    workload = _choice("workload", config.get("workload"))
    impl = once(_implementation, bound_to(workload.fields, _node(config, "impl")))
    return CaseRecord(
        workload=workload,
        impl=once(_with_its_arguments, (workload, impl)) if impl.arguments else impl,
        measures=once(_measures, _node(config, "measure")),
        settings=Settings(**{name: getattr(settings, name) for name in NAMES}),
    )


def _single_values(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in NODES}


def _globals(values: Mapping[str, Any]) -> Globals:
    if "experiment" in values:
        raise BadInput(f"experiment: no such field; {FIRST_LINE}")
    if (gpu := str(values.get("device")).removeprefix("cuda:")).isdigit():
        raise BadInput(f"device: it takes cpu or cuda; a GPU is chosen by launcher.gpus={gpu}")
    settings = build(Globals, values, "")
    return replace(settings, device=device_under(settings.debug, settings.device))


def _node(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the fields under ``name``; {} if it is null. Raises BadInput if a YAML file has a single value there."""
    fields = config.get(name) or {}
    if not isinstance(fields, Mapping):
        raise BadInput(f"{name}: {fields!r} is not allowed; give fields, as in {name}: {{NAME: VALUE}}")
    return fields


def _columns(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the table on the terminal; empty for the usual columns. Raises BadInput."""
    names = config.get("columns") or []
    return check_columns(names if isinstance(names, list) else [names]) if names else ()


def _conclusion(config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the analyses, whose names and fields are not checked yet. Raises BadInput."""
    records, analyses = config.get("conclusion") or [], []
    for record in records if isinstance(records, list) else [records]:
        try:
            analyses.append(Choice.from_record(record))
        except UNREADABLE:
            advice = f"give its name and fields, as in {ANALYSIS}"
            raise BadInput(f"conclusion: {record!r} is not an analysis; {advice}") from None
    return tuple(analyses)


def _measures(chosen: Mapping[str, Any]) -> tuple[Choice, ...]:
    if not chosen:
        raise BadInput("measure: nothing to observe; choose at least one, as in measure=benchmark")
    if stray := [name for name, values in chosen.items() if not isinstance(values, Mapping)]:
        advice = "a YAML of conf/measure begins with the line # @package measure.<name>"
        raise BadInput(f"measure.{stray[0]}: belongs to no measurement; {advice}")
    return tuple(_choice("measure", values, f"measure.{name}") for name, values in chosen.items())


def _choice(group: str, values: object, prefix: str = "") -> Choice:
    """Check an option of ``group`` against its class. Raises BadInput."""
    option = _option(values, prefix or group)
    try:
        cls = workload_class(option) if group == "workload" else _class(PACKAGES[group], option.name)
    except LookupError as error:
        raise BadInput(f"{group}={option.name}: {error}") from None
    fields = {name: value for name, value in option.fields.items() if name not in BESIDE}
    return Choice(option.name, to_fields(build(cls, fields, prefix or group)))


_class = cache(option_class)


def _implementation(values: object) -> Choice:
    return implementations.checked(_option(values, "impl"))


def _with_its_arguments(case: tuple[Choice, Choice]) -> Choice:
    """Return the implementation of a workload and an implementation without the arguments that its function lacks."""
    known = _arguments(*case)
    _, impl = case
    lacking = {f"{ARGS}{name}" for name in impl.arguments if name not in known}
    return Choice(impl.name, {name: value for name, value in impl.fields.items() if name not in lacking})


def _arguments(workload: Choice, impl: Choice) -> list[str]:
    """Return the arguments that the function of ``impl`` has for ``workload``, without that workload's options."""
    options = workload_of(workload).options()
    return [name for name in implementations.build(impl).arguments(workload.name) if name not in options]


def _check_arguments(impls: Sequence[Choice], cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput if no function of ``cases`` has an argument of ``impls``."""
    used = {name for case in cases for name in case.impl.arguments}
    for name in (name for impl in impls for name in impl.arguments if name not in used):
        names = {impl.name for impl in impls if name in impl.arguments}
        pairs = {(case.workload.name, case.impl.text): case for case in cases if case.impl.name in names}
        available = [argument for case in pairs.values() for argument in _arguments(case.workload, case.impl)]
        functions = ", ".join(dict.fromkeys(f"{case.workload.name}/{case.impl.name}" for case in pairs.values()))
        none = "there are none: only keyword arguments with a default count"
        advice = choices(name, available) if available else none
        if having := having_argument(name, {case.workload.name for case in cases}):
            advice = f"{having}; {choices(name, available)}" if available else having
        raise BadInput(f"impl.args.{name}: no such argument of {functions}; {advice}")


def is_offered(config: Mapping[str, Any]) -> bool:
    """Return whether a pattern, as in ``impl=glob(*)``, means the implementation of ``config``: its workload has it.

    Of a workload in a file it means functions that can take the inputs, but no helpers.
    """
    workload, impl = config["workload"], dict(config["impl"])
    bound = bound_to(workload, impl)
    if bound is not impl and not own_file.read(workload["path"], strict=False).takes_inputs(impl["name"]):
        return False
    try:
        return not implementations.build(_option(bound, "impl")).missing(workload["name"])
    except BadInput:  # impl=file without a path
        return False


def having_argument(argument: str, workloads: Collection[str]) -> str:
    """Name the implementations of ``workloads`` that have ``argument``: ``triton has it: impl=triton``; "" for none."""
    names = []
    for name, impl in implementations.defaults().items():
        with suppress(BadInput, OSError):  # it lacks fields that only a user gives, as the path of impl=file
            build = implementations.build(impl)
            names += [name] if any(argument in build.arguments(op) for op in workloads) else []
    return f"{', '.join(sorted(names))} {'have' if names[1:] else 'has'} it: impl={min(names)}" if names else ""


def _option(values: object, group: str) -> Choice:
    """Return an option that is not checked yet. Raises BadInput if it has no name."""
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        if values and isinstance(values, Mapping) and "name" not in values:
            raise BadInput(f"{group}: the YAML file of its option has no name; write into it, as in name: mine")
        raise BadInput(f"{group}: no option chosen; type {group}=<option>, listed by python -m runner --help")
    return Choice(values["name"], {name: value for name, value in values.items() if name != "name"})

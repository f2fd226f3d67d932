"""Unfold a sweep: the overrides of the command line → the overrides of every case.

Hydra's own ``hydra.sweeper.params`` is read before groups are chosen, so ``workload=gelu,softmax`` would silently lose
the axes of both workloads.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

import runner.implementations as implementations
from runner.config import REVISION, quote_revisions, shapes
from runner.config.compose import Composer, key_of
from runner.config.grid import AXES, check_count, is_run_field
from runner.config.messages import SEVERAL
from runner.config.shapes import GROUP, SHAPE
from runner.device import gpus
from runner.experiment.schema import BadInput, choices

PATH = "impl.path"
LANGUAGE = re.compile(r"\.(py|cu)(?=\\?:\w+'?$)")  # of a user's file, in impl.path=my.py:f
SWEPT = ("workload", "impl")  # groups whose options have different fields
EXAMPLES = {**dict.fromkeys(AXES, "workload.cols:[256,1024]"), "workload.axes": "cols:[256,1024]"}


def configs(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> list[dict[str, Any]]:
    """Return the resolved config of each case of the overrides ``arguments``.

    Raises BadInput and Hydra's exceptions.
    """
    found = []
    for lines in unfold(compose, arguments, multirun=multirun):
        config = compose.resolved(lines)
        found.append(compose.resolved([*quick, *lines]) if (quick := quick_lines(config)) else config)
    return found


def quick_lines(config: Mapping[str, Any]) -> list[str]:
    """Return, if ``config`` has ``quick: true``, an override for each value in ``quick`` of its measurements, else [].

    They belong before the overrides of the case, since the last one of a field counts. Raises BadInput.
    """
    measures = config.get("measure") if config.get("quick") is True else {}
    found = []
    for name, option in (measures or {}).items():
        values = (option.get("quick") if isinstance(option, Mapping) else {}) or {}
        if not isinstance(values, Mapping):
            raise BadInput(f"measure.{name}.quick: {values} is not allowed; give fields, as in quick: {{samples: 80}}")
        found += [f"measure.{name}.{field}={json.dumps(value, default=str)}" for field, value in values.items()]
    return found


def unfold(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> Iterator[list[str]]:
    """Yield the overrides of each case: the product of options, values and the default axes that are not given.

    Raises:
        BadInput: an axis has no values, a sweep lacks ``-m``, or there are too many cases.

    """
    for override in map(compose.parse, arguments):
        _check_option(compose, override)
        _check_default_axis(override)
    arguments = _join_lists(compose, arguments)
    overrides = [compose.parse(line) for line in arguments]
    _check_lists(compose, overrides)
    if multirun:
        yield from _sweep(compose, overrides)
        return
    if swept := [override for override in overrides if override.is_sweep_override()]:
        asked = _as_typed(swept[0])
        raise BadInput(f"{asked}: several values make a sweep; add -m{_other_meaning(compose, swept[0])}")
    fields = {key_of(override): [str(override.input_line)] for override in overrides}
    lines = [line for line, override in zip(arguments, overrides, strict=True) if key_of(override) != SHAPE]
    base = compose(lines)
    together, alone = _study(base)
    if axes := (together | alone).keys() - fields.keys():
        null = " ".join(f"{name}=null" for name in AXES if OmegaConf.select(base, name))
        raise BadInput(f"axes: {', '.join(sorted(axes))}: a sweep; add -m (or {null} for one case)")
    found = _shapes(compose, base, fields)
    if len(found) > 1:
        raise BadInput(f"+shapes={','.join(base.shapes)}: {len(found)} shapes make a sweep; add -m")
    yield [*lines, *(line for shape in found for line in shape)]


def _sweep(compose: Composer, overrides: Iterable[Override]) -> Iterator[list[str]]:
    """Yield the overrides of each case of a sweep; a field applies to the options that have it."""
    given = {key_of(override): _expand(compose, override) for override in overrides}
    groups, values = _split(compose, given)
    offered, used = dict(values), set[str]()
    # Options, the sizes of each shape, and axes over values.
    grid: list[tuple[list[str], list[list[str]], dict[str, list[str]]]] = []
    for choice in itertools.product(*groups.values()):
        base = compose([*choice, *_fixed(_applicable(compose(choice), values))])
        together, alone = _study(base)
        study = _axes(compose, together, skip=given)  # an experiment's axes, of options and of values
        study_groups, study_values = _split(compose, study)
        singles = _axes(compose, alone, skip=given)
        if groups_alone := _split(compose, singles)[0]:
            raise BadInput(f"one_at_a_time: {', '.join(groups_alone)}: options; it takes fields, so move it to axes")
        offered |= study_values | singles
        parts = [{key: lines} for key, lines in singles.items()] or [{}]
        for extra, part in itertools.product(itertools.product(*study_groups.values()), parts):
            chosen = [*choice, *extra]
            options = compose(chosen)
            fields = _applicable(options, study_values | part | values)
            used |= fields.keys()
            asked = _shapes(compose, options, fields)
            fields.pop(SHAPE, None)
            sizes = _sizes(compose, asked)
            default = _workload_axes(compose([*chosen, *_fixed(fields)]))
            unused = {key for key in default if _sets_only(options, key, fields | sizes)}
            skip = given.keys() | study.keys() | sizes.keys() | unused
            grid.append((chosen, asked or [[]], _axes(compose, default, skip=skip) | fields))
    for key in (key for key in offered if key not in used):
        compose([*chosen, offered[key][0]])  # Hydra raises: no option of the sweep has this field
    for path in offered.get(PATH, []):
        if not any(path in axes.get(PATH, ()) for *_, axes in grid):
            asked_path = path.replace("\\", "")  # Hydra's grammar has one before a colon
            raise BadInput(
                f"{asked_path}: no implementation here takes it; a .py is for impl=file, a .cu for impl=cuda"
            )
    check_count(sum(len(asked) * math.prod(map(len, axes.values())) for _, asked, axes in grid), "this sweep")
    for chosen, asked, axes in grid:
        yield from ([*chosen, *shape, *point] for shape in asked for point in itertools.product(*axes.values()))


def _shapes(compose: Composer, options: DictConfig, fields: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the sizes of each shape that ``fields`` or the chosen sets ask for, as overrides.

    Raises BadInput if one of ``fields`` gives such a size too.
    """
    names, given = _order(options), fields.get(SHAPE, [])
    if not given and not options.get(GROUP):
        return []
    asked = shapes.unfold(compose, options, names, given)
    sizes = _sizes(compose, asked)
    for key in (key for key in fields if key.startswith("workload.")):
        if key in sizes or _sets_only(options, key, sizes):
            raise BadInput(f"{fields[key][0]}: a shape gives {', '.join(sizes)}; give the shape or the sizes")
    return asked


def _order(options: DictConfig) -> list[str]:
    """Return the fields that a shape of the chosen workload sets, in order; none if its YAML does not say."""
    workload = options.get("workload")
    names = workload.get("shape") if isinstance(workload, DictConfig) else None
    if names is None:
        return []
    if not isinstance(names, ListConfig) or not all(isinstance(name, str) and name in workload for name in names):
        wrong = f"{names} does not name sizes of workload={workload.get('name')}"
        raise BadInput(f"{SHAPE}: {wrong}; a YAML gives shapes as an axis: axes: {{workload.shape: [[64, 128]]}}")
    return list(names)


def with_sizes(compose: Composer, words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return ``words`` with its sizes instead of the shape that is one of ``overrides``, all of one case."""
    asked = [line for line in overrides if key_of(compose.parse(line)) == SHAPE]
    options = compose([line for line in overrides if asked and compose.is_group(compose.parse(line))])
    sizes = shapes.unfold(compose, options, _order(options), asked)[0] if asked else []
    return [*(word for word in words if word not in asked), *sizes]


def _sizes(compose: Composer, asked: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the overrides of the shapes ``asked`` by the sizes that they set."""
    found: dict[str, list[str]] = {}
    for line in itertools.chain(*asked):
        found.setdefault(key_of(compose.parse(line)), []).append(line)
    return found


def _split(compose: Composer, axes: Mapping[str, list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the axes over options and the axes over values."""
    groups = {key: lines for key, lines in axes.items() if compose.is_group(compose.parse(lines[0]))}
    return groups, {key: lines for key, lines in axes.items() if key not in groups}


def _applicable(config: DictConfig, values: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the ``values`` whose fields ``config`` has, or that Hydra may judge."""

    def applies(key: str, line: str) -> bool:
        group, _, field = key.partition(".")
        options = config.get(group) if group in SWEPT and not line.startswith(("+", "~")) else None
        return key == SHAPE or not isinstance(options, DictConfig) or field.partition(".")[0] in options

    found = {key: lines for key, lines in values.items() if applies(key, lines[0])}
    if PATH in found:
        found[PATH] = _of_its_language(config, found[PATH])
    return {key: lines for key, lines in found.items() if lines}


def _of_its_language(config: DictConfig, paths: Iterable[str]) -> list[str]:
    """Return those of ``paths``, as impl.path=k.cu:f, that the implementation chosen can take, by how they end."""
    own = implementations.language(str(config.impl.name))
    return [path for path in paths if not (found := LANGUAGE.search(path)) or found[0] == own]


def _fixed(values: Mapping[str, list[str]]) -> list[str]:
    return [lines[0] for key, lines in values.items() if len(lines) == 1 and key != SHAPE]


def _join_lists(compose: Composer, arguments: Sequence[str]) -> list[str]:
    """Make one value of ``launcher.gpus=0,2`` and of other fields that a run has one of."""

    def joined(line: str) -> str:
        override, (key, _, value) = compose.parse(line), line.partition("=")
        if not override.is_sweep_override() or not is_run_field(key_of(override)):
            return line
        base = compose([str(one.input_line) for one in chosen if not one.is_sweep_override()])
        is_list = isinstance(OmegaConf.select(base, key_of(override)), ListConfig)
        return f"{key}=[{value}]" if is_list else f"{key}='{value}'"

    chosen = list(filter(compose.is_group, map(compose.parse, arguments)))
    return list(map(joined, arguments))


def _check_option(compose: Composer, override: Override) -> None:
    """Raise BadInput if a group gets a value that names no option, or a list of options where it takes one."""
    if not compose.is_group(override) or override.is_delete():
        return
    value, group, asked = override.value(), override.key_or_group, override.input_line
    swept = override.is_sweep_override()
    for one in value.list if isinstance(value, ChoiceSweep) else [] if swept else [value]:
        if not isinstance(one, str | QuotedString | list | dict):  # a dict gives fields
            raise BadInput(f"{asked}: {group} takes the name of an option; {choices(str(one), compose.options(group))}")
        is_list = isinstance(one, list) and len(one) > 1 and group not in SEVERAL
        if is_run_field(group) and (swept or is_list):
            raise BadInput(f"{asked}: a run has one {group}; name one")
        if is_list:  # Hydra would take its last item
            raise BadInput(f"{asked}: takes one option; to sweep: {_as_sweep(override)}")


def _check_default_axis(override: Override) -> None:
    """Raise BadInput if a default axis is given as a sweep; its field is meant."""
    group, is_axis, field = key_of(override).partition(".axes.")
    if is_axis and override.is_sweep_override():
        asked = override.input_line or ""
        raise BadInput(f"{asked}: to sweep a field: {group}.{field}={asked.partition('=')[2]} -m")


def _check_lists(compose: Composer, overrides: Sequence[Override]) -> None:
    """Raise BadInput if a field that takes one value gets a list, which is how other tools write a sweep."""
    groups = [_expand(compose, override) for override in overrides if compose.is_group(override)]
    for override in overrides:
        key, items = key_of(override), override.value()
        one_per_run = is_run_field(key) or key == "replicas"
        if not isinstance(items, list) or not items or compose.is_group(override) or one_per_run:
            continue
        for base in map(compose, itertools.product(*groups)):
            if not isinstance(
                OmegaConf.select(base, key, default=base), DictConfig | ListConfig
            ):  # base: no such field
                raise BadInput(f"{override.input_line}: takes one value; to sweep: {_as_sweep(override)}")


def _as_sweep(override: Override) -> str:
    """Return what to type to sweep over the items of the list that ``override`` gives."""
    return re.sub(r"[\[\]'\" ]", "", str(override.input_line)) + " -m"


def _as_typed(override: Override) -> str:
    """Return the line of ``override`` without the quotes that revisions are given."""
    line = str(override.input_line)
    return line.replace("'", "") if key_of(override) == REVISION else line


def _other_meaning(compose: Composer, swept: Override) -> str:
    """Return what several values without ``-m`` may mean instead of a sweep."""
    key, _, value = str(swept.input_line).partition("=")
    if swept.key_or_group in SEVERAL:
        return f", or take them together: '{key}=[{value}]'"
    if compose.is_group(swept) or key_of(swept) in (REVISION, SHAPE):
        return ""
    return f" (or, if it is one value, quote it within quotes: \"{key}='{value}'\")"


def _study(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the axes of an experiment: those of which it takes all combinations, and those taken one at a time."""
    together, alone, on_cpu = (dict(_declared(config, name)) for name in AXES)
    if on_cpu and _runs_on_cpu(config):
        alone |= {key: axis for key, axis in on_cpu.items() if key in alone}
        together |= {key: axis for key, axis in on_cpu.items() if key not in alone}
    return together, alone


def _runs_on_cpu(config: DictConfig) -> bool:
    """Return whether the cases will run on a CPU. A cluster is taken to have GPUs."""
    local = OmegaConf.select(config, "launcher.name") == "local"
    return config.device == "cpu" or (config.device == "auto" and local and not gpus.visible())


def _workload_axes(config: DictConfig) -> dict[str, Any]:
    axes = _declared(config, "workload.axes") if config.default_axes is True else {}
    return {f"workload.{name}": axis for name, axis in axes.items()}


def _sets_only(options: DictConfig, key: str, given: dict[str, list[str]]) -> bool:
    """Return whether the workload's field ``key`` only sets others, all of which are ``given``: matmul's size."""
    workload: Any = OmegaConf.to_container(options.workload)
    reference = re.compile(rf"\$\{{(.*\bworkload)?\.{key.partition('.')[2]}\b")

    def is_named(lines: Mapping[str, list[str]]) -> bool:
        return any(reference.search(line) for values in lines.values() for line in values)

    written = {f"workload.{name}": [str(value)] for name, value in workload.items()}
    return is_named(written) and not is_named(written | given)


def _declared(config: DictConfig, key: str) -> Mapping[Any, Any]:
    """Return the axes at ``key``: lists, or strings in Hydra's sweep syntax, by name. Raises BadInput."""
    axes = OmegaConf.select(config, key)
    if not isinstance(axes, Mapping | None):
        example = f"{key}={{{EXAMPLES[key]}}}"
        raise BadInput(f"{key}: {axes} is not a set of axes; give fields with lists of values, as in {example}")
    for name, axis in (axes or {}).items():
        if not isinstance(axis, str | Sequence):
            raise BadInput(f"{key}: {name}: {axis} is not a list; give one, as in {name}: [{axis}]")
    return axes or {}


def _axes(compose: Composer, declared: Mapping[str, Any], skip: Iterable[str]) -> dict[str, list[str]]:
    """Return declared axes as override lines by key."""
    axes = {}
    for key, axis in declared.items():
        if key not in skip:
            text = axis if isinstance(axis, str) else ",".join("null" if v is None else str(v) for v in axis)
            line = f"{key}={text}"
            override = compose.parse(quote_revisions(line) if key == REVISION else line)
            _check_option(compose, override)
            axes[key] = _expand(compose, override)
    return axes


def _expand(compose: Composer, override: Override) -> list[str]:
    """Return one override line per value. Raises BadInput if there is none, or too many for a run."""
    try:
        lines = compose.expand(override)
    except (HydraException, ValueError, ArithmeticError):  # interval(1,9), range(1,9,0), range(0,inf)
        raise BadInput(
            f"{override.input_line}: no finite list of values; give one, as in range(256,1025,256)"
        ) from None
    if not lines:
        raise BadInput(f"{override.input_line}: this axis of the sweep is empty; give it at least one value")
    return lines

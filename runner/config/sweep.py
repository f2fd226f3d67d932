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

from runner import implementations
from runner.config import REVISION, quote_revisions
from runner.config.compose import Composer, key_of
from runner.config.grid import check_count, is_run_field
from runner.config.messages import SEVERAL
from runner.experiment.schema import BadInput, choices

PATH = "impl.path"
LANGUAGE = re.compile(r"\.(py|cu)(?=\\?:\w+'?$)")  # of a user's file, in impl.path=my.py:f
SWEPT = ("workload", "impl")  # groups whose options have different fields
EXAMPLES = {"axes": "workload.cols:[256,1024]", "workload.axes": "cols:[256,1024]"}


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
    if axes := _declared(compose(arguments), "axes").keys() - set(map(key_of, overrides)):
        raise BadInput(f"axes: {', '.join(sorted(axes))}: a sweep; add -m (or axes=null for one case)")
    yield list(arguments)


def _sweep(compose: Composer, overrides: Iterable[Override]) -> Iterator[list[str]]:
    """Yield the overrides of each case of a sweep; a field applies to the options that have it."""
    given = {key_of(override): _expand(compose, override) for override in overrides}
    groups, values = _split(compose, given)
    offered, used = dict(values), set[str]()
    grid: list[tuple[list[str], dict[str, list[str]]]] = []  # options, and axes over values
    for choice in itertools.product(*groups.values()):
        base = compose([*choice, *_fixed(_applicable(compose(choice), values))])
        study = _axes(compose, _declared(base, "axes"), skip=given)  # an experiment's axes, of options and of values
        study_groups, study_values = _split(compose, study)
        offered |= study_values
        for extra in itertools.product(*study_groups.values()):
            chosen = [*choice, *extra]
            options = compose(chosen)
            fields = _applicable(options, study_values | values)
            used |= fields.keys()
            default = _workload_axes(compose([*chosen, *_fixed(fields)]))
            unused = {key for key in default if _sets_only(options, key, fields)}
            grid.append((chosen, _axes(compose, default, skip=given.keys() | study | unused) | fields))
    for key in (key for key in offered if key not in used):
        compose([*chosen, offered[key][0]])  # Hydra raises: no option of the sweep has this field
    for path in offered.get(PATH, []):
        if not any(path in axes.get(PATH, ()) for _, axes in grid):
            asked = path.replace("\\", "")  # Hydra's grammar has one before a colon
            raise BadInput(f"{asked}: no implementation here takes it; a .py is for impl=file, a .cu for impl=cuda")
    check_count(sum(math.prod(map(len, axes.values())) for _, axes in grid), "this sweep")
    for chosen, axes in grid:
        yield from ([*chosen, *point] for point in itertools.product(*axes.values()))


def _split(compose: Composer, axes: Mapping[str, list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the axes over options and the axes over values."""
    groups = {key: lines for key, lines in axes.items() if compose.is_group(compose.parse(lines[0]))}
    return groups, {key: lines for key, lines in axes.items() if key not in groups}


def _applicable(config: DictConfig, values: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the ``values`` whose fields ``config`` has, or that Hydra may judge."""

    def applies(key: str, line: str) -> bool:
        group, _, field = key.partition(".")
        options = config.get(group) if group in SWEPT and not line.startswith(("+", "~")) else None
        return not isinstance(options, DictConfig) or field.partition(".")[0] in options

    found = {key: lines for key, lines in values.items() if applies(key, lines[0])}
    if PATH in found:
        found[PATH] = _of_its_language(config, found[PATH])
    return {key: lines for key, lines in found.items() if lines}


def _of_its_language(config: DictConfig, paths: Iterable[str]) -> list[str]:
    """Return those of ``paths``, as impl.path=k.cu:f, that the implementation chosen can take, by how they end."""
    own = implementations.language(str(config.impl.name))
    return [path for path in paths if not (found := LANGUAGE.search(path)) or found[0] == own]


def _fixed(values: Mapping[str, list[str]]) -> list[str]:
    return [lines[0] for lines in values.values() if len(lines) == 1]


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
    if compose.is_group(swept) or key_of(swept) == REVISION:
        return ""
    return f" (or, if it is one value, quote it within quotes: \"{key}='{value}'\")"


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

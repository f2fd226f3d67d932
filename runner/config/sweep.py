"""Unfold a sweep: overrides of the command line → overrides of every case.

Hydra's own ``hydra.sweeper.params`` is read before groups are chosen, so ``workload=gelu,softmax`` would silently lose
the axes of both workloads.
"""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString
from omegaconf import DictConfig, ListConfig, OmegaConf

from ..device import gpus
from ..records.bad_input import BadInput, choices
from ..records.debugging import device_under
from . import shapes
from .compose import Composer, key_of
from .grid import AXES, check_count, having_argument, is_offered, is_run_field
from .messages import SEVERAL
from .shapes import SHAPE
from .words import ARGUMENT, REVISION, quote_revisions

SWEPT = ("workload", "impl")  # groups whose options have different fields
Axes = dict[str, list[str]]  # by key, the override lines
Block = tuple[list[str], list[list[str]], Axes]  # options, sizes of each shape, and axes over values
EXAMPLES = {**dict.fromkeys(AXES, "workload.cols:[256,1024]"), "workload.axes": "cols:[256,1024]"}


def configs(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> list[dict[str, Any]]:
    """Return the resolved config of each case of ``arguments``. Raises BadInput and Hydra's exceptions."""
    resolved = []
    for lines in unfold(compose, arguments, multirun=multirun):
        config = compose.resolved(lines)
        resolved.append(compose.resolved([*quick, *lines]) if (quick := quick_lines(config)) else config)
    return resolved


def quick_lines(config: Mapping[str, Any]) -> list[str]:
    """Return an override for each value in ``quick`` of the measurements if ``config`` has ``quick: true``, else [].

    They must precede the overrides of the case, since the last override of a field counts. Raises BadInput.
    """
    measures = config.get("measure") if config.get("quick") is True else {}
    lines = []
    for name, option in (measures or {}).items():
        values = (option.get("quick") if isinstance(option, Mapping) else {}) or {}
        if not isinstance(values, Mapping):
            raise BadInput(f"measure.{name}.quick: {values} is not allowed; give fields, as in quick: {{samples: 80}}")
        lines += [f"measure.{name}.{field}={json.dumps(value, default=str)}" for field, value in values.items()]
    return lines


def unfold(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> Iterator[list[str]]:
    """Yield the overrides of each case: the product of options, values, and default axes that are not overridden.

    A field applies to the options that have it. Raises BadInput if an axis has no values, a sweep lacks ``-m``, or
    there are too many cases.
    """
    for override in map(compose.parse, arguments):
        _check_option(compose, override)
    overrides = list(map(compose.parse, _join_lists(compose, arguments)))
    _check_lists(compose, overrides)
    swept = [override for override in overrides if override.is_sweep_override()]
    if swept and not multirun:
        typed = str(swept[0].input_line)
        typed = typed.replace("'", "") if key_of(swept[0]) == REVISION else typed
        raise BadInput(f"{typed}: several values make a sweep; add -m{_other_meaning(compose, swept[0])}")
    by_key = {key_of(override): compose.expand(override) for override in overrides}
    globbed = any(key_of(override) == "impl" and isinstance(override.value(), Glob) for override in overrides)
    grid = _grid(compose, by_key, multirun=multirun, globbed=globbed)
    count = sum(len(shape_lines) * math.prod(map(len, axes.values())) for _, shape_lines, axes in grid)
    check_count(count, "this sweep")
    for chosen, shape_lines, axes in grid:
        yield from ([*chosen, *shape, *point] for shape in shape_lines for point in itertools.product(*axes.values()))


def _grid(compose: Composer, by_key: Mapping[str, list[str]], *, multirun: bool, globbed: bool) -> list[Block]:
    """Return the blocks of a sweep over the overrides ``by_key``. A field applies to the options that have it."""
    groups, values = _split(compose, by_key)
    offered, used = dict(values), set[str]()
    grid: list[Block] = []
    for choice in itertools.product(*groups.values()):
        base = compose([*choice, *_fixed(_applicable(compose(choice), values))])
        if globbed and not is_offered(base):
            continue
        together, paired, alone = _study(base)
        if not multirun and (axes := (together | paired | alone).keys() - by_key.keys()):
            null = " ".join(f"{name}=null" for name in AXES if OmegaConf.select(base, name))
            raise BadInput(f"axes: {', '.join(sorted(axes))}: a sweep; add -m (or {null} for one case)")
        if twice := sorted(together.keys() & paired.keys()):
            raise BadInput(f"{', '.join(twice)}: in axes and in pairs; leave one of them out")
        study = _axes(compose, together, skip=by_key)  # an experiment's axes, of options and of values
        study_groups, study_values = _split(compose, study)
        singles = _axes(compose, alone, skip=by_key)
        if groups_alone := _split(compose, singles)[0]:
            raise BadInput(f"one_at_a_time: {', '.join(groups_alone)}: options; it takes fields, so move it to axes")
        pairs = _split(compose, _axes(compose, paired, skip=by_key))
        offered |= study_values | pairs[1] | singles
        parts = [{key: lines} for key, lines in singles.items()] or [{}]
        for extra, (more, pair), part in itertools.product(
            itertools.product(*study_groups.values()), _zipped(*pairs), parts
        ):
            chosen = [*choice, *extra, *more]
            fields = _applicable(compose(chosen), study_values | pair | part | values)
            used |= fields.keys()
            grid.append(_block(compose, chosen, fields, {*by_key, *study, *pairs[0]}, multirun=multirun))
    if not grid:
        raise BadInput("impl: the pattern names no implementation of the workload; --help with the workload lists them")
    for key in (key for key in offered if key not in used):
        _check_argument(compose, compose.parse(offered[key][0]), grid)
        compose([*chosen, offered[key][0]])  # Hydra raises: no option of the sweep has this field
    return grid


def _check_argument(compose: Composer, override: Override, grid: Sequence[Block]) -> None:
    """Raise BadInput if ``override``, which applies to no block of ``grid``, is of the arguments of a kernel."""
    key, given = key_of(override), override.value()
    names = [key.removeprefix(ARGUMENT)] if key.startswith(ARGUMENT) else given if f"{key}." == ARGUMENT else None
    if not names or not isinstance(names, list | dict):
        return
    options = [compose(block[0]) for block in grid]
    impls, name = ",".join(dict.fromkeys(each.impl.name for each in options)), str(next(iter(names)))
    known = having_argument(name, {each.workload.name for each in options})
    known = known or "no implementation does: docs/groups/impl.md lists arguments"
    raise BadInput(f"{ARGUMENT}{name}: impl={impls} takes no such argument; {known}")


def _zipped(groups: Axes, values: Axes) -> list[tuple[list[str], Axes]]:
    """Return the combinations that ``pairs`` take: options, and the values of each. Raises BadInput."""
    counts = {key: len(lines) for key, lines in (groups | values).items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {key}" for key, count in counts.items())
        raise BadInput(f"pairs: {told}; their values are taken together, so give as many of each")
    return [
        ([lines[place] for lines in groups.values()], {key: [lines[place]] for key, lines in values.items()})
        for place in range(max(counts.values(), default=1))
    ]


def _block(
    compose: Composer, chosen: list[str], fields: dict[str, list[str]], skip: Collection[str], *, multirun: bool
) -> Block:
    """Return the block of the options ``chosen``: their shapes, and their default axes but ``skip`` and ``fields``."""
    options = compose(chosen)
    shape_lines = shapes.unfold(compose, options, fields.pop(SHAPE, []))
    sizes = {key_of(compose.parse(line)): [line] for line in itertools.chain(*shape_lines)}
    for key in (key for key in fields if key in sizes or (sizes and _sets_only(options, key, sizes))):
        raise BadInput(f"{fields[key][0]}: a shape gives {', '.join(sizes)}; give the shape or the sizes")
    if len(shape_lines) > 1 and not multirun:
        raise BadInput(f"+shapes={','.join(options.shapes)}: {len(shape_lines)} shapes make a sweep; add -m")
    config = compose([*chosen, *_fixed(fields)])
    declared = _declared(config, "workload.axes") if multirun and config.default_axes is True else {}
    default = {f"workload.{name}": axis for name, axis in declared.items()}
    unused = {key for key in default if _sets_only(options, key, fields | sizes)}
    return chosen, shape_lines or [[]], _axes(compose, default, skip={*skip, *sizes, *unused}) | fields


def _split(compose: Composer, axes: Mapping[str, list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the axes over options and the axes over values."""
    groups = {key: lines for key, lines in axes.items() if compose.is_group(compose.parse(lines[0]))}
    return groups, {key: lines for key, lines in axes.items() if key not in groups}


def _applicable(config: DictConfig, values: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the ``values`` whose fields ``config`` has, or that Hydra checks."""

    def applies(key: str, line: str) -> bool:
        group, _, field = key.partition(".")
        options = config.get(group) if group in SWEPT and not line.startswith(("+", "~")) else None
        return key == SHAPE or not isinstance(options, DictConfig) or field.partition(".")[0] in options

    return {key: lines for key, lines in values.items() if applies(key, lines[0])}


def _fixed(values: Mapping[str, list[str]]) -> list[str]:
    return [lines[0] for key, lines in values.items() if len(lines) == 1 and key != SHAPE]


def _join_lists(compose: Composer, arguments: Sequence[str]) -> list[str]:
    """Join ``launcher.gpus=0,2``, and other fields with one value per run, into one value."""

    def joined(line: str) -> str:
        override, (key, _, value) = compose.parse(line), line.partition("=")
        if not override.is_sweep_override() or not is_run_field(key_of(override)):
            return line
        base = compose([str(option.input_line) for option in chosen if not option.is_sweep_override()])
        is_list = isinstance(OmegaConf.select(base, key_of(override)), ListConfig)
        return f"{key}=[{value}]" if is_list else f"{key}='{value}'"

    chosen = list(filter(compose.is_group, map(compose.parse, arguments)))
    return list(map(joined, arguments))


def _check_option(compose: Composer, override: Override) -> None:
    """Raise BadInput for a wrong choice of an option, or if a default axis is swept instead of its field."""
    value, group, line = override.value(), override.key_or_group, str(override.input_line)
    swept = override.is_sweep_override()
    owner, is_axis, field = key_of(override).partition(".axes.")
    if swept and owner in AXES:
        raise BadInput(f"{line}: give fields with lists of values, as in {owner}={{{EXAMPLES[owner]}}}")
    if is_axis and swept:
        raise BadInput(f"{line}: to sweep a field: {owner}.{field}={line.partition('=')[2]} -m")
    if not compose.is_group(override) or override.is_delete():
        return
    for item in value.list if isinstance(value, ChoiceSweep) else [] if swept else [value]:
        if not isinstance(item, str | QuotedString | list | dict):  # a dict gives fields
            raise BadInput(f"{line}: {group} takes the name of an option; {choices(str(item), compose.options(group))}")
        is_list = isinstance(item, list) and len(item) > 1 and group not in SEVERAL
        if is_run_field(group) and (swept or is_list):
            raise BadInput(f"{line}: a run has one {group}; name one")
        if is_list:  # Hydra would take its last item
            raise BadInput(f"{line}: takes one option; to sweep: {_as_sweep(override)}")


def _check_lists(compose: Composer, overrides: Sequence[Override]) -> None:
    """Raise BadInput if a field that takes one value gets a list, which is how other tools write a sweep."""
    groups = [compose.expand(override) for override in overrides if compose.is_group(override)]
    for override in overrides:
        key, items = key_of(override), override.value()
        one_per_run = is_run_field(key) or key == "replicas"
        if not isinstance(items, list) or not items or compose.is_group(override) or one_per_run:
            continue
        for base in map(compose, itertools.product(*groups)):
            value = OmegaConf.select(base, key, default=base)  # base: no such field
            if not isinstance(value, DictConfig | ListConfig):
                raise BadInput(f"{override.input_line}: takes one value; to sweep: {_as_sweep(override)}")


def _as_sweep(override: Override) -> str:
    """Return the override that sweeps the items of the list in ``override``."""
    return re.sub(r"[\[\]'\" ]", "", str(override.input_line)) + " -m"


def _other_meaning(compose: Composer, swept: Override) -> str:
    """Return another meaning of several values without ``-m``, for a message."""
    key, _, value = str(swept.input_line).partition("=")
    if swept.key_or_group in SEVERAL:
        return f", or take them together: '{key}=[{value}]'"
    if compose.is_group(swept) or key_of(swept) in (REVISION, SHAPE):
        return ""
    if re.fullmatch(r"\d{1,3}(,000)+", value):
        return f" (or, if it is one number: {key}={value.replace(',', '')})"
    return f" (or, if it is one value, quote it within quotes: \"{key}='{value}'\")"


def _study(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the axes of an experiment: to combine, to walk together, and to take one at a time."""
    together, paired, alone, on_cpu = (dict(_declared(config, name)) for name in AXES)
    local = OmegaConf.select(config, "launcher.name") == "local"  # a cluster is assumed to have GPUs
    device = device_under(config.debug, config.device)
    if on_cpu and (device == "cpu" or (device == "auto" and local and not gpus.visible())):
        for axes in (paired, alone):
            axes |= {key: on_cpu.pop(key) for key in axes if key in on_cpu}
        together |= on_cpu
    return together, paired, alone


def _sets_only(options: DictConfig, key: str, sizes: dict[str, list[str]]) -> bool:
    """Return whether ``key``, as matmul's size, only sets other fields of the workload, all of which are ``sizes``."""
    workload: Any = OmegaConf.to_container(options.workload) if key.startswith("workload.") else {}
    reference = re.compile(rf"\$\{{(.*\bworkload)?\.{key.partition('.')[2]}\b")

    def is_named(lines: Mapping[str, list[str]]) -> bool:
        return any(reference.search(line) for values in lines.values() for line in values)

    written = {f"workload.{name}": [str(value)] for name, value in workload.items()}
    return is_named(written) and not is_named(written | sizes)


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
            axes[key] = compose.expand(override)
    return axes

"""``-m``, with the default axes of each workload: overrides → the overrides of every case.

Hydra's own ``hydra.sweeper.params`` is read before groups are chosen, so ``workload=gelu,softmax`` would lose the
axes of both workloads without a word.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, Transformer
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

from runner.config import grid, of_the_run
from runner.config.compose import Composer
from runner.config.messages import SEVERAL
from runner.experiment.schema import BadInput, choices

SWEPT = ("workload", "impl")  # groups whose options have different fields
EXAMPLES = {
    "axes": "axes={workload.cols:[256,1024]}",  # any key of the command line
    "workload.axes": "workload.axes={cols:[256,1024]}",
}


def configs(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> list[dict[str, Any]]:
    """Return the resolved config of every case that the overrides ``arguments`` mean.

    Raises BadInput and Hydra's exceptions.
    """
    found = [compose.plain(point) for point in unfold(compose, arguments, multirun=multirun)]
    if not found:
        raise BadInput("the sweep is empty: one of its axes has no values, so there is no case to run")
    return found


def unfold(compose: Composer, arguments: Sequence[str], *, multirun: bool) -> Iterator[list[str]]:
    """The overrides of each case: the product of the groups, of the axes nobody gave, and of the values.

    Raises:
        BadInput: an axis has no values, or there is a sweep without ``-m``, an experiment's included.

    """
    arguments = _lists(compose, arguments)
    overrides = [compose.parse(line) for line in arguments]
    for override in overrides:
        _check_options(compose, override)
        _check_default_axis(override)
    _check_lists(compose, overrides)
    if not multirun:
        if swept := [override for override in overrides if override.is_sweep_override()]:
            raise BadInput(f"{swept[0].input_line}: several values make a sweep; add -m{_instead(compose, swept[0])}")
        if unswept := _declared(compose(arguments), "axes").keys() - {_key(override) for override in overrides}:
            raise BadInput(f"axes: {', '.join(sorted(unswept))}: a sweep; add -m (or axes=null for one case)")
        yield list(arguments)
        return
    given = {_key(override): _spell(compose, override) for override in overrides}
    groups = {key: lines for key, lines in given.items() if compose.is_group(compose.parse(lines[0]))}
    values = {key: lines for key, lines in given.items() if key not in groups}
    unused, studied, fit = dict(values), set[str](), set[str]()
    for choice in itertools.product(*groups.values()):
        fixed = [lines[0] for lines in _that_fit(compose(choice), values).values() if len(lines) == 1]
        base = compose([*choice, *fixed])
        declared = _declared(base, "axes")  # of an experiment: groups or values
        if strange := [name for name in declared if re.split(r"\W", str(name).lstrip("+"))[0] not in base]:
            raise BadInput(f"axes: {strange[0]}: no such field; name it whole, as in {EXAMPLES['axes']}")
        study = _axes(compose, declared, skip=given)
        more = {key: lines for key, lines in study.items() if compose.is_group(compose.parse(lines[0]))}
        for extra in itertools.product(*more.values()):
            chosen = [*choice, *extra]
            base = compose(chosen)
            fitting = _that_fit(base, {key: lines for key, lines in study.items() if key not in more} | values)
            unused = {key: lines for key, lines in unused.items() if key not in fitting}
            studied |= study.keys() - more.keys()
            fit |= fitting.keys()
            fixed = [lines[0] for lines in fitting.values() if len(lines) == 1]
            axes = _axes(compose, _workload_axes(compose([*chosen, *fixed])), skip=given | study)
            for point in itertools.product(*(axes | fitting).values()):
                yield [*chosen, *point]
    if nowhere := sorted(studied - fit):
        raise BadInput(f"axes: {nowhere[0]}: no option of this grid has such a field")
    for lines in unused.values():
        compose([*chosen, lines[0]])  # no option of the sweep has this field: let Hydra say so
        raise AssertionError(f"{lines[0]} fits after all")


def _lists(compose: Composer, arguments: Sequence[str]) -> list[str]:
    """``launcher.gpus=0,2`` as one value, and likewise whatever else is of the run: no sweep. Raises BadInput."""
    overrides = {line: compose.parse(line) for line in arguments}
    several = {
        line: override
        for line, override in overrides.items()
        if override.is_sweep_override() and of_the_run(_key(override))
    }
    if not several:
        return list(arguments)
    for line, override in several.items():
        if compose.is_group(override):
            raise BadInput(f"{line}: a run has one {override.key_or_group}; name one")
    groups = [line for line, one in overrides.items() if compose.is_group(one) and not one.is_sweep_override()]
    base, spelled = compose(groups), {}
    for line, override in several.items():
        key, _, value = line.partition("=")
        is_list = isinstance(OmegaConf.select(base, _key(override)), ListConfig)
        spelled[line] = f"{key}=[{value}]" if is_list else f"{key}='{value}'"
    return [spelled.get(line, line) for line in arguments]


def _check_options(compose: Composer, override: Override) -> None:
    """Raise BadInput if a group gets what is no option, or several at once, of which Hydra would take the last."""
    if not compose.is_group(override) or override.is_delete():
        return
    value, group = override.value(), override.key_or_group
    key, asked = override.get_key_element(), override.input_line
    for one in value.list if isinstance(value, ChoiceSweep) else [] if override.is_sweep_override() else [value]:
        if not isinstance(one, str | QuotedString | list | dict):  # of which a dict gives fields
            raise BadInput(f"{asked}: {group} takes the name of an option; {choices(str(one), compose.options(group))}")
        if group in SEVERAL or not isinstance(one, list) or len(one) < 2:
            continue
        if of_the_run(group):
            raise BadInput(f"{asked}: a run has one {group}; name one")
        raise BadInput(f"{asked}: takes one option; to sweep: {key}={','.join(_names(value))} -m")


def _check_default_axis(override: Override) -> None:
    """Raise BadInput if what is swept when nothing is given is given as a sweep, of which Hydra would run nothing."""
    group, default, field = _key(override).partition(".axes.")
    if default and override.is_sweep_override():
        asked = override.input_line or ""
        raise BadInput(f"{asked}: to sweep a field: {group}.{field}={asked.partition('=')[2]} -m")


def _check_lists(compose: Composer, overrides: Sequence[Override]) -> None:
    """Raise BadInput if a field that takes one value gets a list, the way other tools write a sweep."""
    of_cases = [one for one in overrides if not of_the_run(_key(one)) and _key(one) not in grid.OF_THE_RUN]
    listed = {_key(one): one for one in of_cases if _items(one) and not compose.is_group(one)}
    groups = [_spell(compose, override) for override in overrides if compose.is_group(override)]
    bases = [compose(lines) for lines in itertools.product(*groups)] if listed else []
    for key, override in listed.items():
        fields = [OmegaConf.select(base, key, default=base) for base in bases]  # base: there is none, as Hydra tells
        if not all(isinstance(field, DictConfig | ListConfig) for field in fields):
            axis = f"{override.get_key_element()}={','.join(map(Transformer.str, _items(override)))}"
            raise BadInput(f"{override.input_line}: takes one value; to sweep: {axis} -m")


def _items(override: Override) -> list[Any]:
    """Those of the list that ``override`` gives, if it is one."""
    value = override.value()
    return value if isinstance(value, list) else []


def _names(value: object) -> list[str]:
    """Those of options in ``value``, of a sweep, a list, or a list in a sweep."""
    if isinstance(value, ChoiceSweep | list):
        return [name for one in (value.list if isinstance(value, ChoiceSweep) else value) for name in _names(one)]
    return [value.text if isinstance(value, QuotedString) else str(value)]


def _instead(compose: Composer, swept: Override) -> str:
    """What else several values may have been meant for."""
    key, _, value = str(swept.input_line).partition("=")
    if swept.key_or_group in SEVERAL:
        return f", or take them together: '{key}=[{value}]'"
    return "" if compose.is_group(swept) else f" (or, if it is one value, quote it within quotes: \"{key}='{value}'\")"


def _that_fit(base: DictConfig, values: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The fields that ``base`` has: in a sweep over options, a field applies to those that have it."""

    def fits(key: str, line: str) -> bool:
        group, _, field = key.partition(".")
        options = base.get(group) if group in SWEPT and not line.startswith(("+", "~")) else None
        return not isinstance(options, DictConfig) or field.partition(".")[0] in options

    return {key: lines for key, lines in values.items() if fits(key, lines[0])}


def _workload_axes(config: DictConfig) -> dict[str, Any]:
    own = _declared(config, "workload.axes") if config.default_axes is True else {}
    return {f"workload.{name}": axis for name, axis in own.items()}


def _declared(config: DictConfig, key: str) -> Mapping[Any, Any]:
    """The axes at ``key``. Raises BadInput if they are not lists, or words in Hydra's sweep syntax, by name."""
    axes = OmegaConf.select(config, key)
    if not isinstance(axes, Mapping | None):
        raise BadInput(f"{key}: {axes} is no axes; give fields with lists of values, as in {EXAMPLES[key]}")
    for name, axis in (axes or {}).items():
        if not isinstance(axis, str | Sequence):
            raise BadInput(f"{key}: {name}: {axis} is not a list; give one, as in {name}: [{axis}]")
    return axes or {}


def _axes(compose: Composer, declared: Mapping[str, Any], skip: Iterable[str]) -> dict[str, list[str]]:
    """Declared axes, a list or Hydra's own sweep syntax as a string, as override lines by key."""
    axes = {}
    for key, axis in declared.items():
        if key not in skip:
            text = axis if isinstance(axis, str) else ",".join("null" if v is None else str(v) for v in axis)
            override = compose.parse(f"{key}={text}")
            _check_options(compose, override)
            axes[key] = _spell(compose, override)
    return axes


def _key(override: Override) -> str:
    return str(override.get_key_element()).lstrip("+~")


def _spell(compose: Composer, override: Override) -> list[str]:
    """One override line per value. Raises BadInput if there is none."""
    try:
        lines = compose.spell(override)
    except (HydraException, ValueError):  # interval(1,9), range(1,9,0)
        raise BadInput(
            f"{override.input_line}: no finite list of values; give one, as in range(256,1025,256)"
        ) from None
    if not lines:
        raise BadInput(f"{override.input_line}: this axis of the sweep is empty; give it at least one value")
    return lines

"""Unfold shapes: ``workload.shape=[4096,14336,4096]`` and ``+shapes=llama3_8b`` → an override for each size.

The YAML of a workload names its sizes in order, as in ``shape: [m, k, n]``. A case has sizes, but no shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig

from ..records.bad_input import BadInput
from .compose import Composer
from .words import in_hydra

SHAPE = "workload.shape"
GROUP = "shapes"  # of the named sets; the config has each chosen set under its name
HEADER = "a YAML of conf/shapes begins with the line # @package shapes.<name>"


def unfold(compose: Composer, options: DictConfig, lines: Sequence[str]) -> list[list[str]]:
    """Return the override lines of each shape, without duplicates; [] if no shape is requested.

    ``options``: the config of the chosen options, with the chosen sets. ``lines``: an override of ``workload.shape``
    per shape; without them, the shapes of the sets. Raises BadInput.
    """
    sets, names = options.get(GROUP), _order(options)
    if not lines and not sets:
        return []
    if lines and sets:
        raise BadInput(f"{lines[0]}: +{GROUP}={','.join(map(str, sets))} gives the shapes; give one of the two")
    if not names and lines:
        name, is_file = options.workload.get("name"), "path" in options.workload
        advice = "give inputs() sizes, as in n=64" if is_file else "name its sizes in its YAML, as in shape: [m, n]"
        raise BadInput(f"{SHAPE}: workload={name} has no shape; {advice}")
    requested = [(line, compose.parse(line).value()) for line in lines] if lines else _of_sets(options)
    return [*map(list, dict.fromkeys(_lines(options, names, source, sizes) for source, sizes in requested))]


def _order(options: DictConfig) -> list[str]:
    """Return the fields that a shape of the chosen workload sets, in order; [] if its YAML file has no shape."""
    workload = options.get("workload")
    names = workload.get("shape") if isinstance(workload, DictConfig) else None
    if names is None:
        return []
    if not isinstance(names, ListConfig) or not all(isinstance(name, str) and name in workload for name in names):
        wrong = f"{names} does not name sizes of workload={workload.get('name')}"
        raise BadInput(f"{SHAPE}: {wrong}; a YAML gives shapes as an axis: axes: {{workload.shape: [[64, 128]]}}")
    return list(names)


def _of_sets(options: DictConfig) -> Iterator[tuple[str, object]]:
    """Yield the shapes that the chosen sets have for the chosen workload, each with the name of its set."""
    workload, sets = options.workload.get("name"), options[GROUP]
    for name, shapes in sets.items():
        if not isinstance(shapes, Mapping):
            raise BadInput(f"{GROUP}: {name} belongs to no set; {HEADER}")
        if not (listed := shapes.get(workload)):
            have = ", ".join(str(other) for other in shapes if shapes[other]) or "none"
            raise BadInput(f"+{GROUP}={name}: no shapes for workload={workload}; it has some for {have}")
        if not isinstance(listed, ListConfig):
            raise BadInput(f"{GROUP}.{name}.{workload}: {listed} is not a list of shapes; give one, as in [[64, 128]]")
        yield from ((f"{GROUP}.{name}.{workload}", shape) for shape in listed)


def _lines(options: DictConfig, names: Sequence[str], source: str, sizes: Any) -> tuple[str, ...]:
    """Return an override for each of ``sizes``. ``source`` names their origin in messages."""
    if isinstance(sizes, Mapping):  # a task file: each case names its fields
        return tuple(f"workload.{name}={in_hydra(size)}" for name, size in sizes.items())
    typed, is_list = source.startswith(SHAPE), isinstance(sizes, list | ListConfig)
    if typed and is_list and any(isinstance(size, list) for size in sizes):
        raise BadInput(f"{source}: takes one shape; to sweep: {source.replace('[[', '[').replace(']]', ']')} -m")
    if not is_list or len(sizes) != len(names):
        shown, workload = source if typed else f"{source}: {sizes}", options.workload.get("name")
        raise BadInput(f"{shown}: a shape of workload={workload} has {len(names)} sizes: [{','.join(names)}]")
    return tuple(f"workload.{name}={size}" for name, size in zip(names, sizes, strict=True))

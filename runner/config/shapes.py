"""Unfold shapes: ``workload.shape=[4096,14336,4096]`` and ``+shapes=llama3_8b`` → an override for each size.

The YAML of a workload names its sizes in order, as in ``shape: [m, k, n]``. A case has the sizes and no shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from omegaconf import DictConfig, ListConfig

from runner.config.compose import Composer
from runner.experiment.schema import BadInput

SHAPE = "workload.shape"
GROUP = "shapes"  # of the named sets; the config has each chosen set under its name
HEADER = "a YAML of conf/shapes begins with the line # @package shapes.<name>"


def unfold(compose: Composer, options: DictConfig, names: Sequence[str], asked: Sequence[str]) -> list[list[str]]:
    """Return the override lines of each shape, without duplicates.

    ``options``: the config of the chosen options, with the chosen sets. ``names``: the sizes of the workload, in order.
    ``asked``: one override of ``workload.shape`` per shape; none: those of the sets. Raises BadInput.
    """
    sets = options.get(GROUP)
    if asked and sets:
        raise BadInput(f"{asked[0]}: +{GROUP}={','.join(map(str, sets))} gives the shapes; give one of the two")
    if not names:
        workload = options.workload.get("name")
        raise BadInput(f"{SHAPE}: workload={workload} has no shape; name its sizes in its YAML, as in shape: [m, n]")
    given = [(line, compose.parse(line).value()) for line in asked] if asked else list(_of_sets(options))
    return [list(lines) for lines in dict.fromkeys(_lines(options, names, where, sizes) for where, sizes in given)]


def _of_sets(options: DictConfig) -> Iterator[tuple[str, object]]:
    """Yield the shapes that the chosen sets have for the chosen workload, each with the name of its set."""
    workload, sets = options.workload.get("name"), options[GROUP]
    for name, shapes in sets.items():
        if not isinstance(shapes, Mapping):
            raise BadInput(f"{GROUP}: {name} belongs to no set; {HEADER}")
        if not (found := shapes.get(workload)):
            have = ", ".join(str(one) for one in shapes if shapes[one]) or "none"
            raise BadInput(f"+{GROUP}={name}: no shapes for workload={workload}; it has some for {have}")
        if not isinstance(found, ListConfig):
            raise BadInput(f"{GROUP}.{name}.{workload}: {found} is no list of shapes; give one, as in [[64, 128]]")
        yield from ((f"{GROUP}.{name}.{workload}", shape) for shape in found)


def _lines(options: DictConfig, names: Sequence[str], where: str, sizes: object) -> tuple[str, ...]:
    """Return an override for each of ``sizes``, which ``where`` gives."""
    nested = isinstance(sizes, Sequence) and not isinstance(sizes, str) and any(isinstance(one, list) for one in sizes)
    if nested and where.startswith(SHAPE):
        raise BadInput(f"{where}: takes one shape; to sweep: {where.replace('[[', '[').replace(']]', ']')} -m")
    if not isinstance(sizes, list | ListConfig) or len(sizes) != len(names):
        shown = where if where.startswith(SHAPE) else f"{where}: {sizes}"
        wanted = f"[{','.join(names)}]"
        raise BadInput(f"{shown}: a shape of workload={options.workload.get('name')} has {len(names)} sizes: {wanted}")
    return tuple(f"workload.{name}={size}" for name, size in zip(names, sizes, strict=True))

"""What measurements declare in their files: columns, and quantities to compare implementations by."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import chain
from typing import Any, Literal

from ..records.bad_input import BadInput
from ..records.columns import COLUMNS as OF_ANY_ROW
from ..records.columns import DERIVED, DEVICE, Column
from ..records.options import option_names


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """A line of the table that compares implementations: a column of the row, or of ``kernels.csv``.

    Of ``kernels.csv``, ``call`` adds up all kernels; ``kernel`` takes the longest launch of the dominant kernel.
    """

    title: str
    column: str
    of: Literal["row", "call", "kernel"] = "row"


def columns() -> dict[str, dict[str, Column]]:
    """Return the columns that each measurement declares in its file as ``COLUMNS``, by the measurement's name."""
    return {name: dict(declared) for name, declared in _declarations("COLUMNS")}


def compared_quantities() -> dict[str, tuple[ComparedQuantity, ...]]:
    """Return the quantities that measurements with a field ``reference`` compare, by the measurement's name.

    Their files declare them as ``SIDE_BY_SIDE``.
    """
    return {name: tuple(declared) for name, declared in _declarations("SIDE_BY_SIDE")}


def _declarations(constant: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of each measurement whose file has ``constant``, and its value.

    Importing these files does not load torch. A file that cannot be imported is reported where it is chosen.
    """
    for name in option_names("measure"):
        with suppress(Exception):
            yield name, getattr(import_module(f".{name}", __package__), constant)


def known_columns() -> dict[str, Column]:
    """Return all declared columns by name: of every row, of the measurements, of the device, and derived from rows."""
    return {**OF_ANY_ROW, **dict(chain.from_iterable(map(dict.items, columns().values()))), **DEVICE, **DERIVED}


def column_of(name: str) -> Column:
    """Return the column called ``name``; one without a unit if it is not declared, as in rows of another version."""
    for declared in (DERIVED, OF_ANY_ROW, DEVICE):
        if name in declared:
            return declared[name]
    return known_columns().get(name, Column("", ""))


def check_columns(names: Sequence[str], also: Collection[str] = ()) -> tuple[str, ...]:
    """Return ``names``, of columns to show. Raises BadInput if one is neither declared nor in ``also``."""
    known = [*dict.fromkeys([*known_columns(), *also])] if names else []
    for name in names:
        if name not in known:
            raise BadInput(f"columns: no such column {name!r}; {meant(str(name), known)}docs/columns.md lists them all")
    return tuple(names)


def meant(name: str, columns: Sequence[str]) -> str:
    """Return ``did you mean gpu_us or wall_us? ``: the nearest of ``columns``, else those that have ``name``; or ""."""
    having = [column for column in columns if name in column and len(name) > 2]
    near = get_close_matches(name, columns, 3) or having[:3]
    return f"did you mean {' or '.join(near)}? " if near else ""

"""Labels that tell the cases of a grid apart."""

from collections.abc import Sequence
from typing import Any

from ..records.case import CaseRecord, Choice, Scalar
from ..records.figures import as_words
from ..records.grouping import grouped
from ..records.labels import Labels, several, varying
from .lines import Line

PLAIN = {"tf32": False, "data": "normal", "layout": "contiguous"}  # fields that a heading leaves out at these values


class Names:
    """Labels that tell the cases of one grid apart and leave out what is the same for all."""

    def __init__(self, cases: Sequence[CaseRecord]) -> None:
        self._labels = Labels(case.impl for case in cases)
        self._varying_settings = varying_settings(cases)
        varied = varying(case.workload for case in cases)
        workloads = grouped((case.workload for case in cases), lambda workload: workload.name)
        # By workload: the fields that vary over the grid, in the order of its class; and the others with their values.
        self.axes = {name: _axes(chosen, varied[name]) for name, chosen in workloads.items()}
        self.constants = {name: _constants(chosen[0], varied[name]) for name, chosen in workloads.items()}

    def constant(self, workload: str) -> str:
        """Return the fields that are the same in all cases of ``workload`` and not plain: ``dtype=float32 rows=8``."""
        fields = self.constants[workload].items()
        return " ".join(as_words({name: value for name, value in fields if PLAIN.get(name) != value}))

    def impl(self, case: CaseRecord) -> str:
        """Return ``compiled``, or ``compiled(mode=default)`` if the grid has several of that name."""
        return self._labels.label(case.impl)

    def value(self, line: Line, column: str) -> Any:
        """Return ``line.value(column)``, or the label for the column ``implementation``."""
        return self.impl(line.case) if column == "implementation" else line.value(column)

    def settings(self, case: CaseRecord) -> dict[str, Scalar]:
        """Return the settings that vary over the grid, with their values in ``case``."""
        return {name: value for name, value in case.flat_settings.items() if name in self._varying_settings}

    def problem(self, case: CaseRecord) -> dict[str, Scalar]:
        """Return the fields and settings that vary over the problems of a workload, with their values in ``case``."""
        fields = case.workload.fields  # a user's workload may have had other ones in another run
        return {name: fields.get(name) for name in self.axes[case.workload.name]} | self.settings(case)

    def heading(self, case: CaseRecord) -> str:
        """Return the workload and what varies, without the implementation: ``gelu cols=1024 seed=1``."""
        return " ".join([case.workload.name, *as_words(self.problem(case))])

    def parts(self, case: CaseRecord) -> tuple[str, str]:
        """Return the heading and the implementation."""
        return self.heading(case), self.impl(case)

    def case(self, case: CaseRecord) -> str:
        """Return the heading and the implementation in one: ``gelu cols=1024 seed=1 triton``."""
        return " ".join(self.parts(case))


def varying_settings(cases: Sequence[CaseRecord]) -> set[str]:
    """Return the settings that vary over ``cases``, without fields of measurements that ``quick`` alone changes."""
    names = several(case.flat_settings for case in cases)
    if "quick" not in names:
        return names
    by_quick = grouped(cases, lambda case: case.settings.quick).values()
    chosen = set[str]().union(*(several(case.flat_settings for case in alike) for alike in by_quick))
    return {name for name in names if name in chosen or not name.startswith("measure.")}


def _constants(workload: Choice, varied: set[str]) -> dict[str, Scalar]:
    """Return the fields that a heading shows: not the path of a user's workload, whose name is that of its file."""
    hidden = {*varied, "path"}
    return {name: value for name, value in workload.fields.items() if name not in hidden and value is not None}


def _axes(chosen: Sequence[Choice], varied: set[str]) -> list[str]:
    """Return the ``varied`` fields without copies of an earlier one, such as m, n and k of size.

    A field that is null in some cases is also a copy of a later one, if it agrees with it in the others.
    """
    series = {name: [choice.fields.get(name) for choice in chosen] for name in chosen[0].fields if name in varied}

    def is_copy(place: int, mine: list[Scalar]) -> bool:
        others = [each for at, each in enumerate(series.values()) if at < place or (None in mine and None not in each)]
        return any(all(value in (None, other) for value, other in zip(mine, each, strict=True)) for each in others)

    return [name for place, (name, mine) in enumerate(series.items()) if not is_copy(place, mine)]

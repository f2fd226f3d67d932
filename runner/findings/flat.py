"""Rows as flat records: one mapping per case, as in rows.csv."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..records.case import CaseRecord
from ..records.columns import COLUMNS, DERIVED
from .lines import Line
from .names import Names

Records = Sequence[Mapping[str, Any]]
PLACES, LAST = {name: place for place, name in enumerate(COLUMNS)}, len(COLUMNS)


def case_fields(case: CaseRecord) -> dict[str, Any]:
    """Return workload and implementation with their fields, named as on the command line: ``workload.cols``."""
    return {
        "workload": case.workload.name,
        **{f"workload.{name}": value for name, value in case.workload.fields.items()},
        "impl": case.impl.name,
        **{f"impl.{name}": value for name, value in case.impl.fields.items()},
    }


def flat_records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each line as one flat mapping.

    Fields are named as on the command line: ``workload.cols``, ``impl.mode``. Settings beside the workload and the
    implementation are there if they vary. Measured columns are in the order of their declaration, unknown ones, from
    other versions, after them.
    """
    names = Names([line.case for line in lines])
    return [
        {
            **case_fields(line.case),
            **names.settings(line.case),
            "seed": line.case.settings.seed,
            **{name: getattr(line.row, name) for name in ("device", "status", "reason", "phase")},
            **{name: names.value(line, name) for name in DERIVED},
            **dict(sorted(line.row.metrics.items(), key=lambda item: PLACES.get(item[0], LAST))),
            "key": line.case.key,
        }
        for line in lines
    ]


def column_names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of ``records``: run, workload, implementation, then the others, and the key last."""
    rank = {"run": -1, "workload": 0, "impl": 1, "key": 3}
    names = dict.fromkeys(name for record in records for name in record)
    return sorted(names, key=lambda name: rank.get(name.partition(".")[0], 2))

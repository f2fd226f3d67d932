"""Writers of flat records: CSV, JSON and Parquet."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..findings.flat import Records, column_names
from ..records.bad_input import BadInput

# These begin a formula: https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = ("=", "+", "-", "@", "\t", "\r")
NUMERIC = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?|-")


def csv_text(records: Records) -> str:
    """Return ``records`` as CSV with a header. A text that begins like a formula begins with an apostrophe."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, column_names(records), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in record.items()} for record in records)
    return text.getvalue()


def _inert(value: object) -> object:
    """Return ``value`` with an apostrophe before a text that a spreadsheet would run as a formula."""
    if isinstance(value, str) and value.startswith(FORMULA) and not NUMERIC.fullmatch(value):
        return f"'{value}"
    return value


def json_text(records: Records) -> str:
    """Return ``records`` as a JSON array, one a line, all with the same keys. NaN and infinity are null."""
    import orjson

    empty = dict.fromkeys(column_names(records))
    lines = [orjson.dumps(empty | dict(record), option=orjson.OPT_NON_STR_KEYS).decode() for record in records]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def parquet(records: Records) -> bytes:
    """Return ``records`` as a Parquet file. Raises BadInput if pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet as writer
    except ModuleNotFoundError:
        raise BadInput("--format parquet needs pyarrow; pip install 'kernel-runner[parquet]'") from None
    table = pyarrow.table({name: uniform([record.get(name) for record in records]) for name in column_names(records)})
    file = io.BytesIO()
    writer.write_table(table, file)
    return file.getvalue()


def uniform(values: Sequence[Any]) -> Sequence[Any]:
    """Return ``values`` of one type, which a column of Parquet or of W&B must have: numbers, or else their texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(value) if value is not None and float in kinds else value for value in values]
    return [None if value is None else str(value) for value in values]


RECORDS: Mapping[str, Callable[[Records], str | bytes]] = {"csv": csv_text, "json": json_text, "parquet": parquet}

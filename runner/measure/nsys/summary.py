"""What the terminal shows of a timeline: the figures of a call, the longest lines of each table, and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.experiment.case import Scalar
from runner.measure.nsys.tables import Table
from runner.measure.tabular import aligned

SHOWN, WIDEST = 8, 64  # lines of a table on the terminal, and characters of a name
RANGES = 24  # lines of ranges: those of two steps of four layers
SHOWN_COLUMNS = {  # of each table on the terminal; its file has more
    "ranges": ("range", "count", "host_us", "gpu_busy_us", "gpu_sum_us", "gpu_span_us", "works"),
    "kernels": ("kernel", "per_call", "mean_us", "share_pct", "launch_us", "ahead_us"),
    "api": ("api", "range", "count", "mean_us", "total_us"),
    "copies": ("copy", "range", "count", "bytes", "mean_us", "gb_per_s"),
    "gaps": ("after", "before", "count", "mean_us", "total_us"),
}


def summary(
    head: str,
    one: Mapping[str, Scalar],
    tables: Mapping[str, Table],
    under_us: float,
    beside_us: float,
    command: str,
) -> str:
    """The text. ``one`` has the figures; a call took the host ``under_us``, and without nsys ``beside_us``."""
    works = f"in {one['nsys_kernels']} kernels, copies and fills"
    figures = [
        ("GPU busy", one["nsys_gpu_us"], works),
        ("GPU idle", one["nsys_idle_us"], "between the first and the last of them"),
        ("waited", one.get("nsys_ahead_us"), "on average, from the end of a launch to the start on the GPU"),
        ("host", under_us, f"{one['nsys_overhead_pct']:+.0f} % on the {beside_us:.2f} us without nsys"),
    ]
    lines = [head, *(f"  {name:9}{value:10.2f} us  {what}" for name, value, what in figures if value is not None)]
    for name, columns in SHOWN_COLUMNS.items():
        if name in tables:
            lines += ["", *_shown(tables[name], columns, RANGES if name == "ranges" else SHOWN)]
    if one["nsys_note"]:
        lines += ["", f"note: {one['nsys_note']}"]
    return "\n".join([*lines, "", f"recorded by: {command}", "to look at: nsys-ui report.nsys-rep", ""])


def _shown(table: Table, columns: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines of ``table``: words to the left, numbers to the right."""
    lines = [list(columns), *([_cell(line[name]) for name in columns] for line in table[:most])]
    words = [place for place, name in enumerate(columns) if isinstance(table[0][name], str)]
    more = [f"  and {len(table) - most} more"] if len(table) > most else []
    return [*aligned(lines, left=words), *more]


def _cell(value: str | float) -> str:
    """As it is, but a long name, as kernels have them, only from its beginning."""
    if isinstance(value, str):
        return value if len(value) <= WIDEST else value[: WIDEST - 3] + "..."
    return str(value)

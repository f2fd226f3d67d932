"""Reduces a report of nsys to the tables and columns that are read, without facts about the machine.

    nsys export --type=sqlite --output=report.sqlite report.nsys-rep
    python tests/measure/nsys/record.py report.sqlite tests/measure/nsys/<what>_<version>.sql

Left out are the environment, host, user, paths and processes: of the strings only those that a kept row refers to, and
of nsys's own messages only those without a path.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

KEPT = {
    "NVTX_EVENTS": ["start", "end", "eventType", "text", "textId", "globalTid", "domainId"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "globalTid", "correlationId", "nameId"],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *("start", "end", "correlationId", "globalPid", "demangledName", "shortName", "gridX", "gridY", "gridZ"),
        *("blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": ["start", "end", "correlationId", "globalPid", "copyKind", "bytes"],
    "CUPTI_ACTIVITY_KIND_MEMSET": ["start", "end", "correlationId", "globalPid", "bytes"],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ["start", "end", "correlationId", "globalPid"],
    "DIAGNOSTIC_EVENT": ["severity", "text"],
    "META_DATA_EXPORT": ["name", "value"],
}
TEXTS = ("textId", "nameId", "demangledName", "shortName")
FACTS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")


def main(database: Path, target: Path) -> None:
    """Write ``target``, an SQL script, from the export ``database``."""
    source, cut = sqlite3.connect(database), sqlite3.connect(":memory:")
    texts: set[int] = set()
    for table, wanted in KEPT.items():
        have = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
        columns = [name for name in wanted if name in have]
        if not columns:
            continue
        rows = list(source.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)}"))
        if table == "META_DATA_EXPORT":
            rows = [row for row in rows if row[0] in FACTS]
        if table == "DIAGNOSTIC_EVENT":
            rows = [row for row in dict.fromkeys(rows) if "/" not in row[1]]
        texts |= {row[place] for row in rows for place, name in enumerate(columns) if name in TEXTS}
        keep(cut, table, columns, rows)
    strings = [row for row in source.execute("SELECT id, value FROM StringIds") if row[0] in texts]
    keep(cut, "StringIds", ["id", "value"], strings)
    cut.commit()
    target.write_text("\n".join(cut.iterdump()) + "\n", encoding="utf-8")


def keep(cut: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple]) -> None:
    """Add a table of ``rows``."""
    cut.execute(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, columns))})")
    cut.executemany(f"INSERT INTO {quoted(table)} VALUES ({', '.join('?' * len(columns))})", rows)


def quoted(name: str) -> str:
    """Return ``name`` in quotes, since a column may have the name ``end``."""
    return f'"{name}"'


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

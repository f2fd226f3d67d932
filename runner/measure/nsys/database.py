"""nsys's export to SQLite as a timeline, by queries of our own.

Tables are there only if they hold rows, and versions differ in their columns.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path

from runner.measure import CALL
from runner.measure.nsys.timeline import Api, Range, Record, Timeline, Work, launched, nested, within

PUSHED = (59, 60)  # event types: a range pushed and popped, and one started and ended
COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}
WARNING, ERROR = 2, 3  # severities of what nsys says itself
PREFIX = "CUPTI_ACTIVITY_KIND_"


def read(database: Path) -> Timeline:
    """The timeline of an export."""
    with closing(sqlite3.connect(database)) as connection:
        reader = _Reader(connection)
        ranges = nested(reader.ranges())
        caller = next((one.thread for one in ranges if one.name == CALL), next((one.thread for one in ranges), 0))
        apis = within(ranges, reader.apis(), caller)
        return Timeline(
            ranges=ranges,
            apis=apis,
            works=launched(ranges, apis, reader.works(), caller),
            graphs=reader.count("GRAPH_TRACE"),
            said=reader.said(),
            version=reader.version(),
        )


class _Reader:
    """An export's tables, as far as they are there."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self._columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in names}

    def rows(self, table: str, columns: Sequence[str], order: str = "") -> Iterator[sqlite3.Row]:
        """``columns`` of ``table``, those that it lacks as NULL; nothing if there is no such table."""
        if table not in self._columns:
            return
        known = self._columns[table]
        listed = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        ordered = f' ORDER BY "{order}"' if order else ""
        yield from self._connection.execute(f'SELECT {listed} FROM "{table}"{ordered}')  # noqa: S608  # our own names

    @cached_property
    def strings(self) -> dict[int, str]:
        """The texts that tables refer to."""
        return {int(key): str(text) for key, text in self.rows("StringIds", ["id", "value"])}

    def ranges(self) -> list[Range]:
        """Ranges of the default domain: libraries that have ranges of their own have a domain for them."""
        columns = ["text", "textId", "start", "end", "globalTid", "eventType", "domainId"]
        found = []
        for text, key, start, end, thread, kind, domain in self.rows("NVTX_EVENTS", columns, "start"):
            if kind in PUSHED and end is not None and not domain:
                found.append(Range(text or self.strings.get(key, ""), start, end, thread or 0))
        return found

    def apis(self) -> list[Api]:
        """Calls of the runtime and of the driver, without the versions that end their names."""
        columns = ["nameId", "start", "end", "globalTid", "correlationId"]
        return [
            Api(re.sub(r"_v\d+$", "", self.strings.get(name, "")), start, end, thread or 0, correlation or 0)
            for name, start, end, thread, correlation in self.rows(f"{PREFIX}RUNTIME", columns, "start")
        ]

    def works(self) -> list[Record]:
        """Kernels, copies and fills."""
        found = [*self._kernels(), *self._copies(), *self._fills()]
        return sorted(found, key=lambda record: (record.work.start, record.work.end))

    def _kernels(self) -> Iterator[Record]:
        columns = [
            "start",
            "end",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "gridX",
            "gridY",
            "gridZ",
        ]
        columns += ["blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory"]
        for row in self.rows(f"{PREFIX}KERNEL", columns):
            start, end, correlation, process, name, short, *sizes = row
            grid, block = (" x ".join(str(size or 1) for size in sizes[place : place + 3]) for place in (0, 3))
            shape = {"grid": grid, "block": block, "registers": sizes[6] or 0}
            shape["shared_bytes"] = (sizes[7] or 0) + (sizes[8] or 0)
            text = self.strings.get(name) or self.strings.get(short) or "?"
            yield Record(Work("kernel", text, start, end, shape=shape), correlation or 0, process or 0)

    def _copies(self) -> Iterator[Record]:
        columns = ["start", "end", "correlationId", "globalPid", "copyKind", "bytes"]
        for start, end, correlation, process, kind, size in self.rows(f"{PREFIX}MEMCPY", columns):
            name = f"copy {COPIES.get(kind, f'of kind {kind}')}"
            yield Record(Work("copy", name, start, end, size=size or 0), correlation or 0, process or 0)

    def _fills(self) -> Iterator[Record]:
        columns = ["start", "end", "correlationId", "globalPid", "bytes"]
        for start, end, correlation, process, size in self.rows(f"{PREFIX}MEMSET", columns):
            yield Record(Work("fill", "fill", start, end, size=size or 0), correlation or 0, process or 0)

    def count(self, kind: str) -> int:
        """Records of one kind of activity."""
        return sum(1 for _ in self.rows(f"{PREFIX}{kind}", ["start"]))

    def said(self) -> tuple[str, ...]:
        """Warnings and errors, each once."""
        rows = self.rows("DIAGNOSTIC_EVENT", ["severity", "text"])
        return tuple(dict.fromkeys(str(text) for severity, text in rows if severity in (WARNING, ERROR)))

    def version(self) -> str:
        """Of the nsys that exported; empty if it does not say, as in 2022."""
        facts = dict(tuple(row) for row in self.rows("META_DATA_EXPORT", ["name", "value"]))
        return str(facts.get("EXPORT_PRODUCT_VERSION", ""))

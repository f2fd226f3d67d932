"""A report of nsys, exported as SQLite, as events of the common time line. nsys writes nanoseconds."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.measure.timeline import Call, Event, calls

NOTABLE = re.compile(  # of what nsys says itself, that which throws doubt on a report that has kernels
    r"is not supported by this build|size limit on recording|already subscribed|payload extension is incompatible"
)

PUSHED = (59, 60)  # event types: a range pushed and popped, and one started and ended
COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}
WARNING, ERROR = 2, 3  # severities of what nsys says itself
PREFIX = "CUPTI_ACTIVITY_KIND_"


@dataclass(frozen=True)
class Report:
    """What a report holds."""

    calls: Sequence[Call]
    others: Sequence[Call]  # outermost ranges that are no calls
    works: int  # kernels, copies and fills, in calls and outside
    graphs: int  # CUDA graphs that were traced as a whole
    said: tuple[str, ...]  # warnings and errors of nsys itself
    version: str

    def notes(self, asked: int) -> Iterator[str]:
        """What a reader of the figures ought to know, where ``asked`` calls were made."""
        if len(self.calls) != asked:
            yield f"it saw {len(self.calls)} of {asked} calls"
        if self.graphs:
            yield f"{self.graphs} CUDA graphs were traced as a whole, and are in no figure"
        yield from (text.strip() for text in self.said if NOTABLE.search(text))


def read(database: Path) -> Report:
    """What an export holds. Raises sqlite3.Error."""
    with closing(sqlite3.connect(database)) as connection:
        reader = _Reader(connection)
        works = [*reader.kernels(), *reader.copies(), *reader.fills()]
        found, others = calls([*reader.ranges(), *reader.apis(), *works])
        graphs = sum(1 for _ in reader.rows(f"{PREFIX}GRAPH_TRACE", ["start"]))
        return Report(found, others, len(works), graphs, reader.said(), reader.version())


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

    def ranges(self) -> Iterator[Event]:
        """Ranges of the default domain: libraries that have ranges of their own have a domain for them."""
        columns = ["text", "textId", "start", "end", "globalTid", "eventType", "domainId"]
        for text, key, start, end, thread, kind, domain in self.rows("NVTX_EVENTS", columns, "start"):
            if kind in PUSHED and end is not None and not domain:
                yield Event(text or self.strings.get(key, ""), "span", start / 1e3, end / 1e3, thread or 0)

    def apis(self) -> Iterator[Event]:
        """Calls of the runtime and of the driver, without the versions that end their names."""
        columns = ["nameId", "start", "end", "globalTid", "correlationId"]
        for key, start, end, thread, number in self.rows(f"{PREFIX}RUNTIME", columns, "start"):
            name = re.sub(r"_v\d+$", "", self.strings.get(key, ""))
            yield Event(name, "api", start / 1e3, end / 1e3, thread or 0, _correlation(number, thread))

    def kernels(self) -> Iterator[Event]:
        """Kernels, with the shape of their launch."""
        columns = ["start", "end", "correlationId", "globalPid", "demangledName", "shortName"]
        columns += [f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ"]
        columns += ["registersPerThread", "staticSharedMemory", "dynamicSharedMemory"]
        for row in self.rows(f"{PREFIX}KERNEL", columns):
            start, end, number, process, name, short, *sizes = row
            grid, block = ("x".join(str(size or 1) for size in sizes[place : place + 3]) for place in (0, 3))
            shape = {"grid": grid, "block": block, "registers": sizes[6] or 0}
            shape["shared_bytes"] = (sizes[7] or 0) + (sizes[8] or 0)
            text = self.strings.get(name) or self.strings.get(short) or "?"
            yield Event(text, "kernel", start / 1e3, end / 1e3, None, _correlation(number, process), shape)

    def copies(self) -> Iterator[Event]:
        """Copies, by their direction."""
        columns = ["start", "end", "correlationId", "globalPid", "copyKind", "bytes"]
        for start, end, number, process, kind, size in self.rows(f"{PREFIX}MEMCPY", columns):
            name = f"copy {COPIES.get(kind, f'of kind {kind}')}"
            yield Event(name, "copy", start / 1e3, end / 1e3, None, _correlation(number, process), {"bytes": size or 0})

    def fills(self) -> Iterator[Event]:
        """Fills of memory with a value."""
        columns = ["start", "end", "correlationId", "globalPid", "bytes"]
        for start, end, number, process, size in self.rows(f"{PREFIX}MEMSET", columns):
            at = _correlation(number, process)
            yield Event("fill", "fill", start / 1e3, end / 1e3, None, at, {"bytes": size or 0})

    def said(self) -> tuple[str, ...]:
        """Warnings and errors, each once."""
        rows = self.rows("DIAGNOSTIC_EVENT", ["severity", "text"])
        return tuple(dict.fromkeys(str(text) for severity, text in rows if severity in (WARNING, ERROR)))

    def version(self) -> str:
        """Version of the nsys that exported; empty if it does not say, as in 2022."""
        facts = dict(tuple(row) for row in self.rows("META_DATA_EXPORT", ["name", "value"]))
        return str(facts.get("EXPORT_PRODUCT_VERSION", ""))


def _correlation(number: int | None, owner: int | None) -> object:
    """By process: the number of a thread ends in 24 bits of its own."""
    return (number, (owner or 0) >> 24) if number else None

"""Read a report of nsys, exported as SQLite, as events of the common time line."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..timeline import ApiCall, Event, Kind, calls

NOTABLE = re.compile(  # messages of nsys that cast doubt on a report
    r"is not supported by this build|size limit on recording|already subscribed|payload extension is incompatible"
)
NO_WORK = (
    "no GPU work was seen in the calls: nothing ran on the GPU, another client of CUPTI is active in that process, "
    "measure.nsys.args traces CUDA graphs as a whole, or this nsys is older than the driver (update it)"
)
NO_CALLS = "it recorded no NVTX ranges, which separate the calls; let measure.nsys.args trace nvtx"
PUSHED = (59, 60)  # event types of ranges: push and pop; start and end
COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}
SEVERE = (2, 3)  # severities: warnings and errors of nsys
PREFIX = "CUPTI_ACTIVITY_KIND_"


@dataclass(frozen=True)
class Report:
    """Contents of a report."""

    calls: Sequence[ApiCall]
    others: Sequence[ApiCall]  # outermost ranges outside of calls
    works: int  # kernels, copies and fills, inside and outside of calls
    graphs: int  # CUDA graphs that were traced as a whole
    messages: tuple[str, ...]  # notable warnings and errors of nsys
    version: str  # version of nsys; empty if the report does not have it, as in 2022

    def notes(self, expected: int) -> Iterator[str]:
        """Yield limits of the figures. ``expected`` is the number of calls that were made."""
        if len(self.calls) != expected:
            yield f"it saw {len(self.calls)} of {expected} calls"
        if self.graphs:
            yield f"{self.graphs} CUDA graphs were traced as a whole and do not count"
        yield from self.messages

    def fault(self) -> str:
        """Return the reason why the report does not show the calls, else ""."""
        if any(call.work for call in self.calls):
            return ""
        fault = NO_CALLS if self.works and not self.calls else NO_WORK
        return f"{fault} ({self.messages[0]})" if self.messages else fault


def read_report(database: Path) -> Report:
    """Return the contents of an exported report. Raises sqlite3.Error."""
    with closing(sqlite3.connect(database)) as connection:
        reader = _ReportTables(connection)
        works = [*reader.kernels(), *reader.copies()]
        recorded, others = calls([*reader.ranges(), *reader.apis(), *works])
        graphs = sum(1 for _ in reader.rows(f"{PREFIX}GRAPH_TRACE", ["start"]))
        events = reader.rows("DIAGNOSTIC_EVENT", ["severity", "text"])
        severe = (str(text) for severity, text in events if severity in SEVERE)
        messages = dict.fromkeys(text.strip() for text in severe if NOTABLE.search(text))
        facts = dict(tuple(row) for row in reader.rows("META_DATA_EXPORT", ["name", "value"]))
        version = str(facts.get("EXPORT_PRODUCT_VERSION", ""))
        return Report(recorded, others, len(works), graphs, tuple(messages), version)


class _ReportTables:
    """The tables of a report, of which some may be missing. Its times are in nanoseconds."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self._columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in names}

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[sqlite3.Row]:
        """Yield ``columns`` of ``table``, NULL for missing columns; nothing if the table is missing."""
        if known := self._columns.get(table):
            listed = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
            yield from self._connection.execute(f'SELECT {listed} FROM "{table}"')  # noqa: S608  # our own names

    @cached_property
    def strings(self) -> dict[int, str]:
        """Texts by the number under which other tables refer to them."""
        return {int(key): str(text) for key, text in self.rows("StringIds", ["id", "value"])}

    def ranges(self) -> Iterator[Event]:
        """Yield the NVTX ranges of the default domain. Libraries put their ranges into other domains."""
        columns = ["text", "textId", "start", "end", "globalTid", "eventType", "domainId"]
        for text, key, start, end, thread, kind, domain in self.rows("NVTX_EVENTS", columns):
            if kind in PUSHED and end is not None and not domain:
                yield Event(text or self.strings.get(key, ""), "span", start / 1e3, end / 1e3, thread or 0)

    def apis(self) -> Iterator[Event]:
        """Yield calls of the CUDA runtime and driver, without the version suffix of their names."""
        columns = ["nameId", "start", "end", "globalTid", "correlationId"]
        for key, start, end, thread, number in self.rows(f"{PREFIX}RUNTIME", columns):
            name = re.sub(r"_v\d+$", "", self.strings.get(key, ""))
            yield Event(name, "api", start / 1e3, end / 1e3, thread or 0, _correlation(number, thread))

    def kernels(self) -> Iterator[Event]:
        """Yield kernels, with the shapes of their launches."""
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
        """Yield copies, named by their direction, and fills of memory with a value."""
        columns = ["start", "end", "correlationId", "globalPid", "bytes", "copyKind"]
        kinds: tuple[tuple[str, Kind], ...] = (("MEMCPY", "copy"), ("MEMSET", "fill"))
        for table, kind in kinds:
            for start, end, number, process, size, code in self.rows(f"{PREFIX}{table}", columns):
                name = f"copy {COPIES.get(code, f'of kind {code}')}" if kind == "copy" else "fill"
                details = {"bytes": size or 0}
                yield Event(name, kind, start / 1e3, end / 1e3, None, _correlation(number, process), details)


def _correlation(number: int | None, owner: int | None) -> object:
    """Return a correlation that is unique among processes. The last 24 bits of ``owner`` are the thread's."""
    return (number, (owner or 0) >> 24) if number else None

"""A program's timeline: what the GPU did, which API call launched it, and in which ranges that was. In nanoseconds.

A launch belongs to the innermost range around it on its thread. Autograd launches a backward from a thread of its own,
which has no ranges, while the caller waits: launches of such a thread belong to the caller's range of that moment.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from runner.measure import CALL

NOTABLE = re.compile(  # of what nsys says itself, that which throws doubt on a report that has kernels
    r"is not supported by this build|size limit on recording|already subscribed|payload extension is incompatible"
)


@dataclass(frozen=True, slots=True)
class Range:
    """An NVTX range that was opened and closed."""

    name: str
    start: int
    end: int
    thread: int
    parent: int | None = None  # index of the range around it


@dataclass(frozen=True, slots=True)
class Api:
    """A call of CUDA's runtime or driver API."""

    name: str
    start: int
    end: int
    thread: int
    correlation: int
    range: int | None = None  # index of the innermost range around it


@dataclass(frozen=True, slots=True)
class Work:
    """Something that the GPU did: a kernel, a copy, or a fill."""

    kind: str  # kernel | copy | fill
    name: str
    start: int
    end: int
    launch: Api | None = None  # None: not recorded
    range: int | None = None  # index of the innermost range around its launch
    call: int | None = None  # index of the range ``call`` around its launch
    size: int = 0  # bytes, of a copy or a fill
    shape: Mapping[str, int | str] = field(default_factory=dict)  # of a kernel's launch


@dataclass(frozen=True)
class Timeline:
    """What a report holds, each in the order of its start."""

    ranges: Sequence[Range]
    apis: Sequence[Api]
    works: Sequence[Work]
    graphs: int = 0  # CUDA graphs that were traced as a whole
    said: tuple[str, ...] = ()  # warnings and errors of nsys itself
    version: str = ""

    @cached_property
    def calls(self) -> list[int]:
        """Indexes of the calls' ranges."""
        return [index for index, one in enumerate(self.ranges) if one.name == CALL and one.parent is None]

    def of_call(self) -> list[list[Work]]:
        """What the GPU did in each call."""
        found: dict[int, list[Work]] = {index: [] for index in self.calls}
        for work in self.works:
            if work.call is not None:
                found[work.call].append(work)
        return list(found.values())

    def around(self, index: int | None) -> Iterator[int]:
        """The range at ``index`` and those around it, from the inside."""
        while index is not None:
            yield index
            index = self.ranges[index].parent

    def path(self, index: int | None) -> str:
        """``call/step_0/forward``; empty for None."""
        return "/".join(reversed([self.ranges[one].name for one in self.around(index)]))

    def notes(self, asked: int, expected: int | None = None) -> Iterator[str]:
        """What a reader of the figures ought to know, where ``asked`` calls were made, of ``expected`` kernels each."""
        if len(self.calls) != asked:
            yield f"it saw {len(self.calls)} of {asked} calls"
        counts = {len(works) for works in self.of_call()}
        if len(counts) > 1:
            yield f"calls had from {min(counts)} to {max(counts)} kernels, copies and fills"
        if expected is not None and counts != {expected}:
            yield f"the benchmark saw {expected} kernels, copies and fills in a call, nsys {max(counts, default=0)}"
        if self.graphs:
            yield f"{self.graphs} CUDA graphs were traced as a whole, and are in no figure"
        yield from (text.strip() for text in self.said if NOTABLE.search(text))


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the GPU's, before its launch is found."""

    work: Work
    correlation: int
    process: int


def nested(ranges: Sequence[Range]) -> list[Range]:
    """``ranges`` by their start, each with the one around it."""
    ordered = sorted(ranges, key=lambda one: (one.start, -one.end))
    opened: dict[int, list[int]] = {}
    found = []
    for index, one in enumerate(ordered):
        stack = opened.setdefault(one.thread, [])
        while stack and ordered[stack[-1]].end <= one.start:
            stack.pop()
        found.append(Range(one.name, one.start, one.end, one.thread, stack[-1] if stack else None))
        stack.append(index)
    return found


def within(ranges: Sequence[Range], apis: Sequence[Api], caller: int) -> list[Api]:
    """``apis``, sorted by start, each with the innermost range around it; ``caller`` is the thread that has ranges."""
    places = _innermost(ranges, [(api.start, api.thread) for api in apis], caller)
    return [
        Api(api.name, api.start, api.end, api.thread, api.correlation, place)
        for api, place in zip(apis, places, strict=True)
    ]


def launched(ranges: Sequence[Range], apis: Sequence[Api], records: Sequence[Record], caller: int) -> list[Work]:
    """Each with its launch; one whose launch was not recorded is in the caller's range of its own start."""
    launches: dict[tuple[int, int], Api] = {}
    for api in apis:
        launches.setdefault((api.correlation, api.thread >> 24), api)  # a thread's number ends in 24 bits of its own
    places = _innermost(ranges, [(record.work.start, caller) for record in records], caller)
    found = []
    for record, place in zip(records, places, strict=True):
        work, launch = record.work, launches.get((record.correlation, record.process >> 24))
        own = launch.range if launch else place
        top = own
        while top is not None and ranges[top].parent is not None:
            top = ranges[top].parent
        call = top if top is not None and ranges[top].name == CALL else None
        found.append(Work(work.kind, work.name, work.start, work.end, launch, own, call, work.size, work.shape))
    return found


def _innermost(ranges: Sequence[Range], moments: Sequence[tuple[int, int]], caller: int) -> list[int | None]:
    """Index of the innermost of ``ranges`` around each moment: a time and a thread, sorted by time."""
    threads = Counter(one.thread for one in ranges)
    opened: dict[int, list[int]] = {}
    found, following = [], 0
    for time, own in moments:
        while following < len(ranges) and ranges[following].start <= time:
            opened.setdefault(ranges[following].thread, []).append(following)
            following += 1
        stack = opened.get(own if threads[own] else caller, [])
        while stack and ranges[stack[-1]].end < time:
            stack.pop()
        found.append(stack[-1] if stack else None)
    return found


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
        """Version of the nsys that exported; empty if it does not say, as in 2022."""
        facts = dict(tuple(row) for row in self.rows("META_DATA_EXPORT", ["name", "value"]))
        return str(facts.get("EXPORT_PRODUCT_VERSION", ""))

"""What the host and the GPU did, taken apart call by call: the time line that profile and nsys share. No torch here.

A kernel and the call of CUDA that launched it bear one correlation number, and so belong together beyond doubt; the
launch stands on the host's clock, within the operation that made it, on whatever thread that is.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from runner.measure import CALL

Kind = Literal["op", "span", "python", "api", "kernel", "copy", "fill"]
ROUNDING_US = 0.005  # times are written in thousandths of a microsecond
ON_GPU = ("kernel", "copy", "fill")


@dataclass(eq=False)
class Event:
    """Something that the host or the GPU did; start and end in microseconds of one clock."""

    name: str
    kind: Kind
    start: float
    end: float
    lane: object = None  # the thread, or the stream
    correlation: object = None  # a launch and what it launched have the same; None: none
    details: Mapping[str, Any] = field(default_factory=dict)  # of a kernel, copy or fill, by column
    shapes: str = ""  # ``64x128 128``: sizes of the tensors among the inputs of an operation
    parent: Event | None = None  # which encloses it on the same thread
    below_us: float = 0.0  # of its time, in what it encloses

    @property
    def us(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def self_us(self) -> float:
        """The part of it that is not in children."""
        return max(0.0, self.us - self.below_us)


@dataclass(frozen=True)
class Work:
    """A kernel, copy or fill, with where it comes from."""

    event: Event
    launch: Event | None  # None: the trace has no call of CUDA for it
    stack: tuple[Event, ...]  # spans, operations and Python functions that enclose the launch, outermost first

    @property
    def start(self) -> float:
        """When the GPU began it."""
        return self.event.start

    @property
    def end(self) -> float:
        """When the GPU was done with it."""
        return self.event.end

    @property
    def op(self) -> Event | None:
        """The innermost operation of torch that launched it; None for a launch from Python."""
        return next((event for event in reversed(self.stack) if event.kind == "op"), None)


@dataclass(frozen=True)
class Call:
    """One profiled call."""

    span: Event
    work: tuple[Work, ...]  # by start
    host: tuple[tuple[Event, tuple[Event, ...]], ...]  # what the host did in it, each with what encloses it


def calls(events: Iterable[Event]) -> tuple[list[Call], list[Call]]:
    """The calls, which are spans named ``call``, and the other outermost spans; each with what is in it, by start."""
    host: list[Event] = []
    gpu: list[Event] = []
    for event in events:
        (gpu if event.kind in ON_GPU else host).append(event)
    threads = {lane: Thread(own) for lane, own in _by_lane(host).items()}
    found = sorted(filter(_is_call, host), key=lambda event: event.start)
    others = [event for event in host if event.kind == "span" and event.parent is None and event.name != CALL]
    return _filled(found, host, gpu, threads), [_filled([span], host, gpu, threads)[0] for span in others]


def _filled(
    spans: Sequence[Event], host: Sequence[Event], gpu: Sequence[Event], threads: Mapping[object, Thread]
) -> list[Call]:
    parts = zip(spans, _work(spans, gpu, host, threads), _host(spans, host, threads), strict=True)
    return [Call(span, tuple(work), tuple(events)) for span, work, events in parts]


class Thread:
    """What one thread did: events that enclose each other.

    Not all do: an annotation begins within the Python function that begins it, and outlasts that. Such a pair stands
    side by side.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = sorted(events, key=lambda event: (event.start, -event.end))
        open_: list[Event] = []
        for event in self._events:
            while open_ and (open_[-1].end <= event.start or open_[-1].end + ROUNDING_US < event.end):
                open_.pop()
            if open_:
                event.parent = open_[-1]
                event.parent.below_us += min(event.end, event.parent.end) - event.start
            open_.append(event)

    @cached_property
    def _starts(self) -> list[float]:
        return [event.start for event in self._events]

    def at(self, time: float) -> Event | None:
        """The innermost event that goes on at ``time``."""
        index = bisect.bisect_right(self._starts, time) - 1
        event = self._events[index] if index >= 0 else None
        while event is not None and event.end < time:
            event = event.parent
        return event


def _is_call(event: Event) -> bool:
    """Whether it is the annotation around a call, rather than one of that name that the call itself makes."""
    if event.kind != "span" or event.name != CALL:
        return False
    above = event.parent
    while above is not None and above.name != CALL:
        above = above.parent
    return above is None


def _by_lane(events: Iterable[Event]) -> dict[object, list[Event]]:
    lanes: dict[object, list[Event]] = {}
    for event in events:
        lanes.setdefault(event.lane, []).append(event)
    return lanes


def _work(
    spans: Sequence[Event], gpu: Sequence[Event], host: Sequence[Event], threads: Mapping[object, Thread]
) -> list[list[Work]]:
    """What the GPU did for each of the calls ``spans``."""
    launches: dict[object, Event] = {}
    for event in host:
        if event.kind == "api" and event.correlation:
            known = launches.setdefault(event.correlation, event)
            if event.us > known.us:  # the runtime's call, within which is the driver's
                launches[event.correlation] = event
    found: list[list[Work]] = [[] for _ in spans]
    for event in sorted(gpu, key=lambda event: event.start):
        launch = launches.get(event.correlation) if event.correlation else None
        index = _index(spans, launch.start if launch else event.start)
        if index is not None:
            stack = _stack(launch, spans[index], threads) if launch else ()
            found[index].append(Work(event, launch, stack))
    return found


def _host(
    spans: Sequence[Event], host: Sequence[Event], threads: Mapping[object, Thread]
) -> list[list[tuple[Event, tuple[Event, ...]]]]:
    """What the host did in each of the calls ``spans``."""
    found: list[list[tuple[Event, tuple[Event, ...]]]] = [[] for _ in spans]
    for event in host:
        index = _index(spans, event.start)
        if index is None or event is spans[index]:
            continue
        if event.end <= spans[index].end:  # else it is the end of the annotation itself, as Python does it
            found[index].append((event, _stack(event, spans[index], threads)))
    return found


def _index(spans: Sequence[Event], time: float) -> int | None:
    """Which of ``spans``, sorted and apart, goes on at ``time``."""
    index = bisect.bisect_right(spans, time, key=lambda span: span.start) - 1
    return index if index >= 0 and time <= spans[index].end else None


def _stack(event: Event, call: Event, threads: Mapping[object, Thread]) -> tuple[Event, ...]:
    """What encloses ``event`` within ``call``, outermost first.

    On another thread than the caller's, such as autograd's, what the caller waits in meanwhile comes before it.
    """
    own = _above(event.parent, call)
    if event.lane != call.lane:
        own = _above(threads[call.lane].at(event.start), call) + own
    return tuple(other for other in own if other.kind != "api")


def _above(event: Event | None, call: Event) -> list[Event]:
    """``event`` and what encloses it, outermost first, from ``call`` on and without it."""
    found: list[Event] = []
    while event is not None and event is not call and event.start >= call.start:
        found.append(event)
        event = event.parent
    return found[::-1]

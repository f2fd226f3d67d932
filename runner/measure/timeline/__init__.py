"""The time line of recorded calls, which profile and nsys share: what the host and the GPU did in each call.

A kernel and the CUDA call that launched it have the same correlation number. The launch stands on the host's clock,
inside the operation that made it, on whatever thread that runs. Nothing here imports torch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, Literal

from runner.measure import CALL

Kind = Literal["op", "span", "python", "api", "kernel", "copy", "fill"]
ON_GPU = ("kernel", "copy", "fill")
ROUNDING_US = 0.005  # a trace has times in thousandths of a microsecond


@dataclass(eq=False)
class Event:
    """Something that the host or the GPU did; start and end in microseconds of one clock.

    A reader fills in the first fields; ``calls`` fills in the others.
    """

    name: str
    kind: Kind
    start: float
    end: float
    thread: object = None  # of the host
    correlation: object = None  # equal for a launch and its kernels; None: unknown
    details: Mapping[str, Any] = field(default_factory=dict)  # of a kernel, copy or fill, by column
    shapes: str = ""  # ``64x128 128``: sizes of the tensors among the inputs of an operation
    parent: Event | None = None  # the innermost event around it on its thread
    children_us: float = 0.0  # time in events that it encloses directly
    launch: Event | None = None  # of a kernel, copy or fill: the CUDA call that launched it; None: not recorded
    stack: tuple[Event, ...] = ()  # spans, operations and Python functions around it or its launch, outermost first

    @property
    def us(self) -> float:
        """Duration."""
        return self.end - self.start

    @property
    def self_us(self) -> float:
        """Duration without the events that it encloses."""
        return max(0.0, self.us - self.children_us)

    def ancestors(self) -> Iterator[Event]:
        """Yield the events around it on its thread, innermost first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    @property
    def op(self) -> Event | None:
        """The innermost operation of torch in the stack; None for a launch from Python."""
        return next((event for event in reversed(self.stack) if event.kind == "op"), None)


@dataclass
class Call:
    """One recorded call, or another outermost span."""

    span: Event
    work: list[Event] = field(default_factory=list)  # kernels, copies and fills that it launched, by start
    host: list[Event] = field(default_factory=list)  # events of the host in it, without the span itself


def calls(events: Iterable[Event]) -> tuple[list[Call], list[Call]]:
    """Return the calls, which are spans named ``call``, and the outermost spans outside of them; both by start.

    Work belongs to the call that launched it. Work without a recorded launch belongs to the call in which it starts.
    """
    by_start = sorted(events, key=lambda event: (event.start, -event.end))
    threads: dict[object, list[Event]] = {}
    for event in by_start:
        if event.kind not in ON_GPU:
            threads.setdefault(event.thread, []).append(event)
    for own in threads.values():
        _nest(own)
    # The runtime's call contains the driver's call of the same number, and is the longer one.
    apis = sorted(
        (event for event in by_start if event.kind == "api" and event.correlation), key=lambda event: event.us
    )
    launches = {event.correlation: event for event in apis}
    found = _outermost(by_start)
    for event in by_start:
        if event.kind in ON_GPU:
            event.launch = launches.get(event.correlation) if event.correlation else None
            if call := _at(found, event.launch.start if event.launch else event.start):
                event.stack = _stack(event.launch, call.span, threads) if event.launch else ()
                call.work.append(event)
            continue
        call = _at(found, event.start)
        if call and event is not call.span and event.end <= call.span.end:  # later: Python code that ends the span
            event.stack = _stack(event, call.span, threads)
            call.host.append(event)
    return [one for one in found if one.span.name == CALL], [one for one in found if one.span.name != CALL]


def _nest(events: Sequence[Event]) -> None:
    """Set the parents of one thread's events, which are sorted.

    Two events may overlap without one enclosing the other: a span begins inside the Python function that begins it, and
    outlasts that function. Such events are neighbors.
    """
    open_: list[Event] = []
    for event in events:
        while open_ and (open_[-1].end <= event.start or open_[-1].end + ROUNDING_US < event.end):
            open_.pop()
        if open_:
            event.parent = open_[-1]
            event.parent.children_us += min(event.end, event.parent.end) - event.start
        open_.append(event)


def _outermost(events: Sequence[Event]) -> list[Call]:
    """Return the calls, and the outermost spans that overlap neither a call nor each other, by start."""
    spans = [event for event in events if event.kind == "span"]
    names = ((span, {above.name for above in span.ancestors()}) for span in spans if span.name == CALL)
    found = [Call(span) for span, around in names if CALL not in around]
    for span in spans:
        if span.parent is None and span.name != CALL:
            index = bisect.bisect_left(found, span.start, key=lambda call: call.span.start)
            before, after = found[max(0, index - 1) : index], found[index : index + 1]
            if all(one.span.end <= span.start for one in before) and all(span.end <= one.span.start for one in after):
                found.insert(index, Call(span))
    return found


def _at(found: Sequence[Call], time: float) -> Call | None:
    """Return the call that runs at ``time``; ``found`` is sorted and does not overlap."""
    index = bisect.bisect_right(found, time, key=lambda call: call.span.start) - 1
    return found[index] if index >= 0 and time <= found[index].span.end else None


def _stack(event: Event, span: Event, threads: Mapping[object, Sequence[Event]]) -> tuple[Event, ...]:
    """Return what encloses ``event`` within ``span``, outermost first.

    For an event of another thread, such as autograd's, begin with what the caller's thread does at the same time: it
    waits there.
    """

    def inside(other: Event) -> bool:
        return other is not span and other.start >= span.start

    own = [*takewhile(inside, event.ancestors())]
    if event.thread != span.thread:
        caller = threads[span.thread]
        last = caller[bisect.bisect_right(caller, event.start, key=lambda other: other.start) - 1]
        own += takewhile(inside, dropwhile(lambda other: other.end < event.start, (last, *last.ancestors())))
    return tuple(other for other in reversed(own) if other.kind != "api")

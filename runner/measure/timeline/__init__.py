"""The time line of recorded calls, shared by profile and nsys: events of the host and the GPU in each call.

A kernel and the CUDA call that launched it have the same correlation number. The launch is on the host's time line,
inside the operation that made it, on the thread of that operation. This package does not import torch.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, Literal, Self

from ...records.grouping import grouped
from .. import CALL

Kind = Literal["op", "span", "python", "api", "kernel", "copy", "fill"]
ON_GPU = ("kernel", "copy", "fill")
ROUNDING_US = 0.005  # a trace has times in thousandths of a microsecond


@dataclass(eq=False)
class Event:
    """An event on the host or the GPU; start and end in microseconds of one clock.

    A reader sets the fields up to ``is_backward``; ``calls`` sets the others.
    """

    name: str
    kind: Kind
    start: float
    end: float
    thread: object = None  # on the host
    correlation: object = None  # the same for a launch and its kernels; None: unknown
    details: Mapping[str, Any] = field(default_factory=dict)  # column → value, for a kernel, copy or fill
    shapes: str = ""  # ``64x128 128``: sizes of the tensors among the inputs of an operation
    node: int | None = None  # number of autograd's node that an operation makes, or whose backward it is
    is_backward: bool = False
    parent: Self | None = None  # the innermost event around it on its thread
    children_us: float = 0.0  # time of the events that it encloses directly
    launch: Self | None = None  # the CUDA call that launched a kernel, copy or fill; None: not recorded
    stack: tuple[Self, ...] = ()  # spans, operations and Python functions around it or its launch, outermost first

    @property
    def us(self) -> float:
        """Duration in us."""
        return self.end - self.start

    @property
    def self_us(self) -> float:
        """Duration in us, without the events that it encloses."""
        return max(0.0, self.us - self.children_us)

    def ancestors(self) -> Iterator[Self]:
        """Yield the enclosing events on its thread, innermost first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    @property
    def op(self) -> Self | None:
        """The innermost operation of torch in the stack; None for a launch from Python."""
        return next((event for event in reversed(self.stack) if event.kind == "op"), None)


@dataclass
class ApiCall:
    """One recorded call, or another outermost span."""

    span: Event
    work: list[Event] = field(default_factory=list)  # kernels, copies and fills that it launched, by start
    host: list[Event] = field(default_factory=list)  # host events in it, without the span itself


def sizes_text(sizes: Sequence[Sequence[int]] | None) -> str:
    """Return ``64x128 128`` for ``[[64, 128], [128], []]``."""
    return " ".join("x".join(map(str, size)) for size in sizes or () if size)


def calls(events: Iterable[Event]) -> tuple[list[ApiCall], list[ApiCall]]:
    """Return the calls, which are spans named ``call``, and the outermost spans outside of them; both by start.

    Work belongs to the call that launched it. Work without a recorded launch belongs to the call in which it starts.
    """
    by_start = sorted(events, key=lambda event: (event.start, -event.end))
    threads = grouped((event for event in by_start if event.kind not in ON_GPU), lambda event: event.thread)
    for on_thread in threads.values():
        _nest(on_thread)
    # The runtime's call contains the driver's call of the same number, and is longer.
    apis = [event for event in by_start if event.kind == "api" and event.correlation]
    launches = {event.correlation: event for event in sorted(apis, key=lambda event: event.us)}
    outermost = _outermost(by_start)
    for event in by_start:
        if event.kind in ON_GPU:
            event.launch = launches.get(event.correlation) if event.correlation else None
            if call := _at(outermost, (event.launch or event).start):
                event.stack = _stack(event.launch, call.span, threads) if event.launch else ()
                call.work.append(event)
        # An event that ends after the span is the Python code that ends it.
        elif (call := _at(outermost, event.start)) and event is not call.span and event.end <= call.span.end:
            event.stack = _stack(event, call.span, threads)
            call.host.append(event)
    others = [outer for outer in outermost if outer.span.name != CALL]
    return [outer for outer in outermost if outer.span.name == CALL], others


def _nest(events: Sequence[Event]) -> None:
    """Set the parents of one thread's events, which are sorted.

    A span begins inside a Python function and outlasts it: such events overlap, and neither encloses the other.
    """
    open_: list[Event] = []
    for event in events:
        while open_ and (open_[-1].end <= event.start or open_[-1].end + ROUNDING_US < event.end):
            open_.pop()
        if open_:
            event.parent = open_[-1]
            event.parent.children_us += min(event.end, event.parent.end) - event.start
        open_.append(event)


def _outermost(events: Sequence[Event]) -> list[ApiCall]:
    """Return the calls, and the outermost spans that overlap neither a call nor each other, by start."""
    spans = [event for event in events if event.kind == "span"]
    calls = [span for span in spans if span.name == CALL and all(above.name != CALL for above in span.ancestors())]
    others = (span for span in spans if span.name != CALL and span.parent is None)
    for span in others:
        if all(other.end <= span.start or span.end <= other.start for other in calls):
            calls.append(span)
    return [ApiCall(span) for span in sorted(calls, key=lambda span: span.start)]


def _at(recorded: Sequence[ApiCall], time: float) -> ApiCall | None:
    """Return the call that runs at ``time``. ``recorded`` is sorted, without overlaps."""
    index = bisect.bisect_right(recorded, time, key=lambda call: call.span.start) - 1
    return recorded[index] if index >= 0 and time <= recorded[index].span.end else None


def _stack(event: Event, span: Event, threads: Mapping[object, Sequence[Event]]) -> tuple[Event, ...]:
    """Return the events that enclose ``event`` within ``span``, outermost first.

    For an event on another thread, such as autograd's, they begin with the events in which the caller's thread waits.
    """

    def inside(other: Event) -> bool:
        return other is not span and other.start >= span.start

    around = [*takewhile(inside, event.ancestors())]
    if event.thread != span.thread:
        caller = threads[span.thread]
        latest = caller[bisect.bisect_right(caller, event.start, key=lambda other: other.start) - 1]
        around += takewhile(inside, dropwhile(lambda other: other.end < event.start, (latest, *latest.ancestors())))
    return tuple(other for other in reversed(around) if other.kind != "api")

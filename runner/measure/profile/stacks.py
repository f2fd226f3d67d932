"""Folded stacks: one line for each way to get somewhere, and how long was spent there.

    call;forward;layer_0;aten::addmm;gemmSN_TN_kernel 48213

The number is nanoseconds of one call. flamegraph.pl and speedscope read this, and ``flame`` draws it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from runner.measure import CALL
from runner.measure.profile.trace import Call, Event

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
OURS = (
    "torch/autograd/profiler.py(",
    "kernels/spans.py(",
)  # what naming the parts takes in Python, and no part of a call

Stacks = Mapping[tuple[str, ...], float]  # frames, outermost first → microseconds of one call


def of_gpu(calls: Sequence[Call]) -> Stacks:
    """Kernels at the end of what launched them, each for its own time."""
    return _mean([((*work.stack, work.event), work.event.us) for call in calls for work in call.work], len(calls))


def of_host(calls: Sequence[Call]) -> Stacks:
    """What the host did, each for its time without what it encloses."""
    found = [((*stack, event), event.self_us) for call in calls for event, stack in call.host]
    return _mean([*found, *(((), call.span.self_us) for call in calls)], len(calls))


def folded(stacks: Stacks) -> str:
    """The lines, in the order in which they are met first; what is shorter than half a nanosecond is left out."""
    lines = (f"{';'.join(frames)} {1000 * us:.0f}" for frames, us in stacks.items() if 1000 * us >= 0.5)
    return "".join(f"{line}\n" for line in lines)


def unfolded(text: str) -> Stacks:
    """The inverse of ``folded``, to its precision."""
    pairs = (line.rpartition(" ") for line in text.splitlines())
    return {tuple(frames.split(";")): int(count) / 1000 for frames, _, count in pairs}


def _mean(found: Iterable[tuple[tuple[Event, ...], float]], calls: int) -> Stacks:
    sums: dict[tuple[str, ...], float] = {}
    for events, us in found:
        if any(event.name.startswith(OURS) for event in events):
            continue
        frames = (CALL, *(_frame(event.name) for event in events))
        sums[frames] = sums.get(frames, 0.0) + us / calls
    return sums


def _frame(name: str) -> str:
    """A name without what parts frames and lines, and without addresses, of which each call has its own."""
    return " ".join(ADDRESS.sub("", name).replace(";", ":").split())

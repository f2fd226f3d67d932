"""torch.profiler around calls, with calls that it does not watch beside them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule, supported_activities

from runner.kernels.spans import watched
from runner.measure import CALL, CannotMeasure
from runner.measure.profile import Profile
from runner.measure.timeline.tables import Line, grouped
from runner.timing import Call
from runner.timing.preparation import preparation
from runner.timing.statistics import trimmed_mean

ROUNDS = 3  # of calls without the profiler and with it, in turn: the machine may be slower later
LONGEST_S = 30.0  # that all of them may take
FEWEST = 2  # calls, of the slowest


@dataclass
class Taken:
    """Microseconds of each call by the host's clock, without the profiler and with it; and what was left out."""

    plain_us: list[float] = field(default_factory=list)
    profiled_us: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def slowdown(self) -> float:
        """Time of a call under the profiler over its time without."""
        return trimmed_mean(self.profiled_us) / trimmed_mean(self.plain_us)


class Caller:
    """Makes one call after the other, each from the same start: inputs as they were, the cache cold, the GPU idle."""

    def __init__(self, call: Call, device: str, settings: Profile) -> None:
        self._run, self._settings, self._gpu = call.run, settings, device == "cuda"
        self._before = preparation(call.reset, cold_l2=settings.cold_l2 and self._gpu)
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        if not supported_activities().issuperset(self._activities):
            raise CannotMeasure(
                "this torch is built without Kineto or CUPTI, which torch.profiler needs; pip install torch"
            )

    def plain_us(self) -> float:
        """What a caller waits for the result of a call, in microseconds."""
        self._ready()
        started = time.perf_counter()
        self._run()
        self._wait()
        return (time.perf_counter() - started) * 1e6

    def profiled_us(self, count: int, path: Path | None, **options: Any) -> tuple[list[float], Any]:
        """The same of ``count`` calls under the profiler, and the profiler; its trace goes to ``path``."""
        plan = schedule(wait=0, warmup=self._settings.warmup, active=count, repeat=1)
        save = None if path is None else lambda profiler: profiler.export_chrome_trace(str(path))
        taken = []
        with torch.profiler.profile(
            activities=self._activities, schedule=plan, on_trace_ready=save, **options
        ) as profiler:
            for _ in range(self._settings.warmup + count):
                taken.append(self._watched_us())
                profiler.step()
        return taken[self._settings.warmup :], profiler

    def _watched_us(self) -> float:
        self._ready()
        started = time.perf_counter()
        with watched(record_function), record_function(CALL):
            self._run()
            self._wait()
        return (time.perf_counter() - started) * 1e6

    def _ready(self) -> None:
        self._before()
        self._wait()

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()


def profile(call: Call, device: str, settings: Profile, path: Path) -> Taken:
    """Comparison of calls without the profiler and with it; the trace of the last round is at ``path``.

    Raises CannotMeasure if this torch cannot.
    """
    caller, taken = Caller(call, device, settings), Taken()
    rounds, count = _plan(caller.plain_us() / 1e6, settings)
    if count < settings.calls:
        taken.note = f"{count} calls instead of {settings.calls}, for they are long"
    for left in reversed(range(rounds)):
        taken.plain_us += [caller.plain_us() for _ in range(count)]
        taken.profiled_us += caller.profiled_us(count, None if left else path, record_shapes=settings.shapes)[0]
    return taken


def again(call: Call, device: str, settings: Profile, path: Path) -> list[Line]:
    """A second pass with all that slows a call down; its trace is at ``path``.

    A line for each operation: its calls, the memory that it took less what it gave back, and how many operations it
    did as far as torch knows, of one call. None if neither is wanted.
    """
    caller = Caller(call, device, settings)
    _, count = _plan(caller.plain_us() / 1e6, settings)
    _, profiler = caller.profiled_us(
        count,
        path,
        record_shapes=settings.shapes or settings.flops,
        profile_memory=settings.memory,
        with_flops=settings.flops,
        with_stack=settings.stacks,
    )
    return _costs(profiler.events(), count, settings, device) if settings.memory or settings.flops else []


def _plan(call_s: float, settings: Profile) -> tuple[int, int]:
    """How many rounds of how many calls, where one takes ``call_s``."""
    if ROUNDS * (settings.warmup + 2 * settings.calls) * call_s <= LONGEST_S:
        return ROUNDS, settings.calls
    fit = int((LONGEST_S / call_s - settings.warmup) / 2)
    return 1, min(settings.calls, max(FEWEST, fit))


def _costs(events: Any, count: int, settings: Profile, device: str) -> list[Line]:
    on_host = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]  # type: ignore[attr-defined]
    calls = [event.time_range for event in on_host if event.name == CALL]
    inside = [
        event
        for event in on_host
        if "::" in event.name and any(c.start <= event.time_range.start <= event.time_range.end <= c.end for c in calls)
    ]
    memory = "self_device_memory_usage" if device == "cuda" else "self_cpu_memory_usage"

    def key(event: Any) -> tuple[str, str]:
        sizes = " ".join("x".join(map(str, size)) for size in event.input_shapes or () if size)
        return event.name, sizes if settings.shapes else ""

    lines: list[Line] = []
    for (op, sizes), some in grouped(inside, key).items():
        line: Line = {"op": op, **({"shapes": sizes} if settings.shapes else {}), "count": len(some) / count}
        if settings.memory:
            line["memory_bytes"] = sum(getattr(event, memory) for event in some) / count
        if settings.flops:
            line["flops"] = sum(event.flops or 0 for event in some) / count
        lines.append(line)
    return sorted(lines, key=_largest, reverse=True)


def _largest(line: Line) -> tuple[float, ...]:
    return tuple(abs(line.get(name, 0.0)) for name in ("flops", "memory_bytes"))

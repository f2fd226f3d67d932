"""Make calls under torch.profiler, and without it for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from ...kernels.spans import watched
from ...timing import clock as time
from ...timing import ranks
from ...timing.call import Call, in_turn
from ...timing.preparation import preparation
from ...timing.statistics import trimmed_mean
from .. import CALL
from ..timeline import sizes_text
from ..timeline.tables import Record

if TYPE_CHECKING:
    from . import Profile

ROUNDS = 3  # calls without and with the profiler alternate, since the machine may become slower
LONGEST_S = 30.0  # for all calls
FEWEST = 2  # calls, even if they are slow


class Caller:
    """Makes calls one at a time, each with restored inputs, cold L2 cache and an idle GPU.

    The constructor times one call to choose ``rounds`` and the ``count`` of calls in each.
    """

    def __init__(self, call: Call, device: str, settings: Profile) -> None:
        self._run, self._settings, self._gpu = call.run, settings, device == "cuda"
        before = preparation(call.reset, cold_l2=settings.cold_l2 and self._gpu)
        self._start_together = in_turn(before, self._wait, ranks.current.meet)
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        self.rounds, self.count = recording_plan(self.plain_us() / 1e6, settings)

    def plain_us(self) -> float:
        """Make a call; return its host time in us until the result is complete."""
        self._start_together()
        started = time.perf_counter()
        self._run()
        self._wait()
        return ranks.current.slowest([(time.perf_counter() - started) * 1e6])[0]

    def profiled_us(self, path: Path | None, **options: Any) -> tuple[list[float], list[Path], Any]:
        """Make calls under the profiler by the schedule: ``repeat`` times wait, warm up, and record ``count`` calls.

        Return the host times of the recorded calls, the traces, and the profiler. The first trace is at ``path``, and
        each repetition has one. Without ``path``, record once and keep no trace.
        """
        settings, traces = self._settings, list[Path]()
        before, repeat = settings.wait + settings.warmup, settings.repeat if path else 1
        steps = schedule(wait=settings.wait, warmup=settings.warmup, active=self.count, repeat=repeat)

        def save(profiler: Any) -> None:
            assert path
            name = path.name.replace(".", f"-{len(traces) + 1}.", 1)  # trace-2.json.gz
            traces.append(path.with_name(name) if traces else path)
            profiler.export_chrome_trace(str(traces[-1]))

        taken = []
        with torch.profiler.profile(
            activities=self._activities, schedule=steps, on_trace_ready=save if path else None, **options
        ) as profiler:
            for step in range(repeat * (before + self.count)):
                self._start_together()
                started = time.perf_counter()
                with watched(record_function), record_function(CALL):
                    self._run()
                    self._wait()
                if step % (before + self.count) >= before:
                    taken.append((time.perf_counter() - started) * 1e6)
                profiler.step()
        return taken, traces, profiler

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()


def record_profile(call: Call, device: str, settings: Profile, path: Path) -> tuple[float, str, list[Path]]:
    """Make calls without and with the profiler in turn; write the traces of the last round, the first to ``path``.

    Return the time of a call under the profiler over its time without it, a note on omitted calls, and the traces.
    """
    caller = Caller(call, device, settings)
    plain_us, profiled_us, traces = list[float](), list[float](), list[Path]()
    for left in reversed(range(caller.rounds)):
        plain_us += [caller.plain_us() for _ in range(caller.count)]
        taken, traces, _ = caller.profiled_us(None if left else path, record_shapes=settings.shapes)
        profiled_us += taken
    fewer = caller.count < settings.active
    note = f"{caller.count} calls instead of {settings.active}, since they are long" if fewer else ""
    return trimmed_mean(profiled_us) / trimmed_mean(plain_us), note, traces


def record_details(call: Call, device: str, settings: Profile, path: Path) -> tuple[list[Record], list[Path]]:
    """Make calls under the options that slow them down; write the traces, the first to ``path``.

    Return a line for each operation, none without ``memory`` and ``flops``, and the traces. A line has means per call
    of the last repetition: the count, memory allocated less memory freed, and floating-point operations by torch.
    """
    caller = Caller(call, device, settings)
    options = {"profile_memory": settings.memory, "with_flops": settings.flops, "with_stack": settings.stacks}
    _, traces, profiler = caller.profiled_us(path, record_shapes=settings.shapes or settings.flops, **options)
    wants_costs = settings.memory or settings.flops
    return _costs(profiler.events(), caller.count, settings, device) if wants_costs else [], traces


def recording_plan(call_s: float, settings: Profile) -> tuple[int, int]:
    """Return the number of rounds, and of calls in each repetition, for calls of ``call_s`` seconds."""
    before, repeat = settings.repeat * (settings.wait + settings.warmup), settings.repeat
    if ROUNDS * (before + (repeat + 1) * settings.active) * call_s <= LONGEST_S:
        return ROUNDS, settings.active
    fit = int((LONGEST_S / call_s - before) / (repeat + 1))
    return 1, min(settings.active, max(FEWEST, fit))


def _costs(events: Any, count: int, settings: Profile, device: str) -> list[Record]:
    on_host = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]  # type: ignore[attr-defined]
    calls = [event.time_range for event in on_host if event.name == CALL]
    memory = "self_device_memory_usage" if device == "cuda" else "self_cpu_memory_usage"
    lines: dict[tuple[str, str], Record] = {}
    for event in on_host:
        time_range = event.time_range
        if "::" not in event.name or not any(c.start <= time_range.start <= time_range.end <= c.end for c in calls):
            continue
        shapes = {"shapes": sizes_text(event.input_shapes)} if settings.shapes else {}
        line = lines.setdefault((event.name, shapes.get("shapes", "")), {"op": event.name, **shapes, "count": 0.0})
        line["count"] += 1 / count
        if settings.memory:
            line["memory_bytes"] = line.get("memory_bytes", 0.0) + getattr(event, memory) / count
        if settings.flops:
            line["flops"] = line.get("flops", 0.0) + (event.flops or 0) / count
    largest = ("flops", "memory_bytes")
    return sorted(lines.values(), key=lambda line: [abs(line.get(name, 0.0)) for name in largest], reverse=True)

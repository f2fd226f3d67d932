"""Calls under torch.profiler, and the same calls without it for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from runner.kernels.spans import watched
from runner.measure import CALL
from runner.measure.profile import Profile, sizes_text
from runner.measure.timeline.tables import Line
from runner.timing import Call
from runner.timing import clock as time
from runner.timing.preparation import preparation
from runner.timing.statistics import trimmed_mean

ROUNDS = 3  # of calls without the profiler and with it, in turn, since the machine may become slower
LONGEST_S = 30.0  # time limit for all of them
FEWEST = 2  # calls, however slow


class Caller:
    """Makes calls one at a time, each from the same start: inputs restored, L2 cache cold, GPU idle.

    The constructor makes one call, whose time decides how many ``count`` calls in ``rounds`` rounds are made.
    """

    def __init__(self, call: Call, device: str, settings: Profile) -> None:
        self._run, self._settings, self._gpu = call.run, settings, device == "cuda"
        self._before = preparation(call.reset, cold_l2=settings.cold_l2 and self._gpu)
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        self.rounds, self.count = plan(self.plain_us() / 1e6, settings)

    def plain_us(self) -> float:
        """Make a call; return its host time until the result is there, in microseconds."""
        self._before()
        self._wait()
        started = time.perf_counter()
        self._run()
        self._wait()
        return (time.perf_counter() - started) * 1e6

    def profiled_us(self, path: Path | None, **options: Any) -> tuple[list[float], Any]:
        """Make ``count`` calls under the profiler; return their host times and the profiler. ``path``: of its trace."""
        warmup = self._settings.warmup
        plan = schedule(wait=0, warmup=warmup, active=self.count, repeat=1)
        save = None if path is None else lambda profiler: profiler.export_chrome_trace(str(path))
        taken = []
        with torch.profiler.profile(
            activities=self._activities, schedule=plan, on_trace_ready=save, **options
        ) as profiler:
            for _ in range(warmup + self.count):
                self._before()
                self._wait()
                started = time.perf_counter()
                with watched(record_function), record_function(CALL):
                    self._run()
                    self._wait()
                taken.append((time.perf_counter() - started) * 1e6)
                profiler.step()
        return taken[warmup:], profiler

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()


def record(call: Call, device: str, settings: Profile, path: Path) -> tuple[float, str]:
    """Make calls without the profiler and with it in turn; write the trace of the last round to ``path``.

    Return the time of a call under the profiler over its time without, and a note on what was left out.
    """
    caller = Caller(call, device, settings)
    plain_us: list[float] = []
    profiled_us: list[float] = []
    for left in reversed(range(caller.rounds)):
        plain_us += [caller.plain_us() for _ in range(caller.count)]
        profiled_us += caller.profiled_us(None if left else path, record_shapes=settings.shapes)[0]
    fewer = caller.count < settings.calls
    note = f"{caller.count} calls instead of {settings.calls}, since they are long" if fewer else ""
    return trimmed_mean(profiled_us) / trimmed_mean(plain_us), note


def record_details(call: Call, device: str, settings: Profile, path: Path) -> list[Line]:
    """Make calls with the options that slow them down; write the trace to ``path``.

    Return a line for each operation, for one call: its count, the memory that it allocated less what it freed, and its
    operations as far as torch counts them. No lines if neither is asked for.
    """
    caller = Caller(call, device, settings)
    _, profiler = caller.profiled_us(
        path,
        record_shapes=settings.shapes or settings.flops,
        profile_memory=settings.memory,
        with_flops=settings.flops,
        with_stack=settings.stacks,
    )
    return _costs(profiler.events(), caller.count, settings, device) if settings.memory or settings.flops else []


def plan(call_s: float, settings: Profile) -> tuple[int, int]:
    """Return the number of rounds, and of calls in each, for a call of ``call_s`` seconds."""
    if ROUNDS * (settings.warmup + 2 * settings.calls) * call_s <= LONGEST_S:
        return ROUNDS, settings.calls
    fit = int((LONGEST_S / call_s - settings.warmup) / 2)
    return 1, min(settings.calls, max(FEWEST, fit))


def _costs(events: Any, count: int, settings: Profile, device: str) -> list[Line]:
    on_host = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]  # type: ignore[attr-defined]
    calls = [event.time_range for event in on_host if event.name == CALL]
    memory = "self_device_memory_usage" if device == "cuda" else "self_cpu_memory_usage"
    lines: dict[tuple[str, str], Line] = {}
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

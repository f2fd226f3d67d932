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

    def profiled_us(self, path: Path | None, **options: Any) -> tuple[list[float], list[Path], Any]:
        """Make calls under the profiler by the schedule: ``repeat`` times wait, warm up, and record ``count`` calls.

        Return the host times of the recorded calls, the traces, and the profiler. ``path``: of the first trace, one for
        each repetition; None: keep none, and record once.
        """
        settings, traces = self._settings, list[Path]()
        before, repeat = settings.wait + settings.warmup, settings.repeat if path else 1
        plan = schedule(wait=settings.wait, warmup=settings.warmup, active=self.count, repeat=repeat)

        def save(profiler: Any) -> None:
            assert path
            name = path.name.replace(".", f"-{len(traces) + 1}.", 1)  # trace-2.json.gz
            traces.append(path.with_name(name) if traces else path)
            profiler.export_chrome_trace(str(traces[-1]))

        taken = []
        with torch.profiler.profile(
            activities=self._activities, schedule=plan, on_trace_ready=save if path else None, **options
        ) as profiler:
            for step in range(repeat * (before + self.count)):
                self._before()
                self._wait()
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


def record(call: Call, device: str, settings: Profile, path: Path) -> tuple[float, str, list[Path]]:
    """Make calls without the profiler and with it in turn; write the traces of the last round, the first to ``path``.

    Return the time of a call under the profiler over its time without, a note on what was left out, and the traces.
    """
    caller = Caller(call, device, settings)
    plain_us: list[float] = []
    profiled_us: list[float] = []
    traces: list[Path] = []
    for left in reversed(range(caller.rounds)):
        plain_us += [caller.plain_us() for _ in range(caller.count)]
        taken, traces, _ = caller.profiled_us(None if left else path, record_shapes=settings.shapes)
        profiled_us += taken
    fewer = caller.count < settings.active
    note = f"{caller.count} calls instead of {settings.active}, since they are long" if fewer else ""
    return trimmed_mean(profiled_us) / trimmed_mean(plain_us), note, traces


def record_details(call: Call, device: str, settings: Profile, path: Path) -> tuple[list[Line], list[Path]]:
    """Make calls with the options that slow them down; write the traces, the first to ``path``.

    Return the traces, and a line for each operation, for one call: its count, the memory that it allocated less what it
    freed, and its operations as far as torch counts them, in the last repetition. No lines if neither is asked for.
    """
    caller = Caller(call, device, settings)
    _, traces, profiler = caller.profiled_us(
        path,
        record_shapes=settings.shapes or settings.flops,
        profile_memory=settings.memory,
        with_flops=settings.flops,
        with_stack=settings.stacks,
    )
    asked = settings.memory or settings.flops
    return _costs(profiler.events(), caller.count, settings, device) if asked else [], traces


def plan(call_s: float, settings: Profile) -> tuple[int, int]:
    """Return the number of rounds, and of calls to record in each repetition, for a call of ``call_s`` seconds."""
    before, repeat = settings.repeat * (settings.wait + settings.warmup), settings.repeat
    if ROUNDS * (before + (repeat + 1) * settings.active) * call_s <= LONGEST_S:
        return ROUNDS, settings.active
    fit = int((LONGEST_S / call_s - before) / (repeat + 1))
    return 1, min(settings.active, max(FEWEST, fit))


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

"""What the driver says of the GPU just now. It averages over a second, so it tells of a case, not of a sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from runner.experiment.case import Scalar
from runner.timing import Call
from runner.timing.capture import CaptureError, capture_stream, capturing
from runner.timing.timestamp_buffer import slots
from runner.timing.timestamps import PAIRS


def gpu_state() -> dict[str, Scalar]:
    """``power_w``, ``temperature_c`` and ``throttle``; nothing where NVML cannot be asked."""
    try:
        nvml, handle = _device()
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        names = {
            nvml.nvmlClocksEventReasonSwPowerCap: "power limit",
            nvml.nvmlClocksEventReasonSwThermalSlowdown: "temperature",
            nvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        }
        return {
            "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle": ", ".join(name for bit, name in names.items() if reasons & bit),
        }
    except Exception:  # no such package, a driver it does not understand, a container without NVML: not known, then
        return {}


def energy_j() -> float | None:
    """Energy the board has used since the driver was loaded, in joules; None where it does not count."""
    try:
        nvml, handle = _device()
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
    except Exception:  # as above; and GPUs before Volta do not count
        return None


@cache
def _device() -> tuple[Any, Any]:
    """The library and its handle of torch's current GPU. Raises whatever NVML raises."""
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


LEAD_S = 3.0  # until the driver's limiter, which averages power over a second, has settled
CHUNK_S = 0.05  # between two looks at the clock: the queue stays short, and waits for the host only so often


def sustained(call: Call, seconds: float, *, captured: bool) -> dict[str, Scalar]:
    """Means of a call over ``seconds`` of continuous load, after ``LEAD_S`` of it: time, clock, power and energy.

    ``captured``: in a CUDA graph, so that launching does not slow it down. Only for a call that was timed in graphs:
    in the graph of another call a part may be missing. The call must wait for all that it starts, since timestamps
    do not see the rest.
    """
    run = _captured(call) if captured else partial(_whole, call)
    count = _calls_in(run, CHUNK_S)
    ended = time.perf_counter() + LEAD_S
    while time.perf_counter() < ended:
        _chunk(run, count)
    before_j, started, chunks = energy_j(), time.perf_counter(), []
    while time.perf_counter() - started < seconds:
        chunks.append(_chunk(run, count))
    after_j, spent_s = energy_j(), time.perf_counter() - started
    ns, cycles = (sum(part) for part in zip(*chunks, strict=True))
    calls = count * len(chunks)
    columns: dict[str, Scalar] = {"sustained_us": ns / 1e3 / calls, "sustained_clock_mhz": cycles / ns * 1e3}
    if before_j is not None and after_j is not None:
        columns |= {
            "sustained_power_w": (after_j - before_j) / spent_s,
            "energy_mj": (after_j - before_j) * 1e3 / calls,
        }
    return columns


def _chunk(run: Callable[[], object], count: int) -> tuple[float, float]:
    """Nanoseconds and cycles of ``count`` calls, one behind the other."""
    timestamps = slots(PAIRS)
    timestamps.begin(0)
    for _ in range(count):
        run()
    timestamps.end(0)
    torch.cuda.synchronize()
    return timestamps.read()[0]


def _calls_in(run: Callable[[], object], seconds: float) -> int:
    """How many calls take about ``seconds``."""
    ns, _ = _chunk(run, 3)
    return max(1, int(seconds * 1e9 / (ns / 3)))


def _captured(call: Call) -> Callable[[], object]:
    """``call`` as a CUDA graph where that can be."""
    graph, stream = torch.cuda.CUDAGraph(), capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            _whole(call)
        torch.cuda.synchronize()
        with capturing(graph):
            _whole(call)
    except CaptureError:  # it has changed its mind
        return partial(_whole, call)
    return graph.replay


def _whole(call: Call) -> None:
    call.restore()
    call.run()

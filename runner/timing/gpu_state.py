"""Power, temperature and limits as the driver reports them, and times under continuous load.

The driver averages over a second, so its figures describe a case rather than a sample.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ..records.case import Scalar
from . import ranks
from .call import Call, in_turn
from .capture import CaptureError, captured, per_gpu
from .timestamps import PAIRS, timestamp_buffer


def gpu_state() -> dict[str, Scalar]:
    """Return ``power_w``, ``temperature_c`` and ``throttle``; nothing if NVML is not available."""
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
    except Exception:  # pynvml is not installed, does not fit the driver, or a container has no NVML
        return {}


def energy_j() -> float | None:
    """Return the energy in J that the GPU has used since its driver was loaded; None if unknown."""
    try:
        nvml, handle = _device()
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
    except Exception:  # as above, or a GPU before Volta
        return None


@per_gpu
def _device() -> tuple[Any, Any]:
    """Return pynvml and its handle of torch's current GPU. Raises errors of NVML."""
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


LEAD_S = 3.0  # until the driver's power limiter, which averages over a second, has settled
CHUNK_S = 0.05  # calls between two synchronizations: the queue stays short, and synchronizing costs little


def sustained(call: Call, seconds: float, *, in_graph: bool) -> dict[str, Scalar]:
    """Return the mean time, clock, power and energy of a call over ``seconds`` of load, after ``LEAD_S`` of load.

    ``in_graph``: replay a CUDA graph, if there is memory for it, so that launching does not slow the call down. Only a
    call that was timed in graphs is certain to be in the graph as a whole. The call must wait for all work that it
    starts.
    """
    run = in_turn(call.restore, call.run)
    if in_graph:
        with suppress(CaptureError):  # memory is too short
            run = captured(run, warm_up=run)[0].replay
    (probe_ns,) = ranks.current.slowest(_chunk(run, 3)[:1])
    count = max(1, int(CHUNK_S * 1e9 / (probe_ns / 3)))
    ended = ranks.current.now() + LEAD_S
    while ranks.current.now() < ended:
        _chunk(run, count)
    before_j, started, chunks = energy_j(), ranks.current.now(), []
    while ranks.current.now() - started < seconds:
        chunks.append(_chunk(run, count))
    after_j, spent_s = energy_j(), ranks.current.now() - started
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
    """Return nanoseconds and cycles of ``count`` calls, back to back."""
    timestamps = timestamp_buffer(PAIRS)
    timestamps.begin(0)
    for _ in range(count):
        run()
    timestamps.end(0)
    torch.cuda.synchronize()
    return timestamps.read()[0]

"""What the driver says of the GPU just now. It averages over a second, so it tells of a case, not of a sample."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from runner.experiment.case import Scalar


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

"""What the driver says of the GPU just now. It averages over a second, so it tells of a case, not of a sample."""

from __future__ import annotations

import torch

from runner.case import Scalar


def gpu_state() -> dict[str, Scalar]:
    """``power_w``, ``temperature_c`` and ``throttle``; nothing where NVML cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        names = {
            pynvml.nvmlClocksEventReasonSwPowerCap: "power limit",
            pynvml.nvmlClocksEventReasonSwThermalSlowdown: "temperature",
            pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        }
        return {
            "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle": ", ".join(name for bit, name in names.items() if reasons & bit),
        }
    except Exception:  # no such package, a driver it does not understand, a container without NVML: not known, then
        return {}

"""A stand-in for Triton's driver where no GPU is used: kernels are interpreted, or only compiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from ..records.replaced import replaced

# Blocks run one after the other, so there is one multiprocessor, with the limits of an H100's.
PROPERTIES = {"multiprocessor_count": 1, "max_num_regs": 65536, "max_shared_mem": 232448, "warpSize": 32}
REGISTERS = 32  # registers of a thread, from which scripts compute an occupancy


@contextmanager
def driver_without_gpu(backend: str, arch: int = 0) -> Iterator[None]:
    """Replace ``triton.runtime.driver.active`` by a driver of ``backend``, "cpu" or "cuda", whose device is the CPU."""
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver
    except ImportError:
        yield
        return
    import torch

    active = SimpleNamespace(
        get_current_target=lambda: GPUTarget(backend, arch, PROPERTIES["warpSize"]),
        get_active_torch_device=lambda: torch.device("cpu"),
        get_current_device=lambda: -arch,  # Triton caches compiled kernels by the number of the device
        get_current_stream=lambda device: 0,
        launcher_cls=lambda source, metadata: lambda *args, **options: None,
        utils=SimpleNamespace(
            get_device_properties=lambda device: PROPERTIES,
            load_binary=lambda *args: (0, 0, REGISTERS, 0, 1024),
        ),
    )
    # driver.set_active would not do: undoing it needs the present driver, which does not exist without a GPU.
    with replaced(driver, "_active" if hasattr(driver, "_active") else "active", active):  # until Triton 3.3
        yield

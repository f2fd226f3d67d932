"""Print the versions that a bug report needs.

Examples:
  python -m runner version

"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..device import gpus
from ..device.identity import driver, package_version
from ._parser import Parser

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "wandb")
CUDA = re.compile(r"^cuda\b.*= *['\"]([\d.]+)", re.MULTILINE)  # in torch/version.py
MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU, by the NVIDIA driver


def main(argv: Sequence[str]) -> int:
    """Print a version per line and return 0. torch is not imported. Raises BadInput."""
    Parser("version", __doc__).parse(argv)
    lines = {
        "kernel-runner": __version__,
        "python": platform.python_version(),
        **{package: package_version(package) or "not installed" for package in PACKAGES},
        "torch's CUDA": _cuda(),
        "system": platform.platform(),
        "driver": driver(),
        "GPUs": ", ".join(_gpus()) if driver() else "",
    }
    print("\n".join(f"{name:<13}  {text or 'none'}" for name, text in lines.items()))
    return 0


def _cuda() -> str:
    """Return the version of CUDA that torch was built for, by its file version.py; "" for none."""
    spec = find_spec("torch")
    file = Path(spec.origin or "").with_name("version.py") if spec else Path()
    match = CUDA.search(file.read_text(encoding="utf-8")) if file.is_file() else None
    return match[1] if match else ""


def _gpus() -> list[str]:
    """Return the names of the GPUs, by files of the driver or else, as in WSL2, by NVML."""
    files = [path.read_text(encoding="utf-8") for path in sorted(GPUS.glob("*/information"))]
    return [name for text in files for name in MODEL.findall(text)] or [gpu.name for gpu in gpus.visible()]

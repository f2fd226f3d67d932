"""Print the versions that a bug report needs.

Examples:
  python -m runner version

"""

import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

from .. import __version__
from ..device import gpus
from ..device.identity import driver, package_version
from ._parser import Parser

PACKAGES = ("torch", "triton", "hydra-core", "omegaconf", "wandb")


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
        "GPUs": ", ".join(gpu.name for gpu in gpus.visible()),
    }
    print("\n".join(f"{name:<13}  {text or 'none'}" for name, text in lines.items()))
    return 0


def _cuda() -> str:
    """Return the version of CUDA that torch was built for, by its file version.py; "" for none."""
    if (spec := find_spec("torch")) is None or spec.origin is None:
        return ""
    return str(run_path(str(Path(spec.origin).with_name("version.py")))["cuda"] or "")

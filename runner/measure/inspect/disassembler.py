"""cuobjdump: what machine code a cubin holds, and what a kernel of it takes. It comes with Triton and with CUDA."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from runner.measure.inspect.assembly import Usage, read_usage

LIMIT_S = 120.0


@cache
def cuobjdump() -> Path | None:
    """Where it is: in Triton's wheel, else on PATH, else in /usr/local/cuda; None if nowhere."""
    triton = find_spec("triton")
    places = [Path(place, "backends/nvidia/bin") for place in (triton and triton.submodule_search_locations) or ()]
    on_path = shutil.which("cuobjdump")
    places += [Path(on_path).parent] if on_path else []
    places.append(Path("/usr/local/cuda/bin"))
    return next((place / "cuobjdump" for place in places if (place / "cuobjdump").is_file()), None)


def disassembled(cubin: bytes) -> tuple[str, Usage] | None:
    """The SASS of ``cubin``, and what its kernel takes; None where there is no cuobjdump, or it knows no such code."""
    program = cuobjdump()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        try:
            sass, usage = (
                subprocess.run(
                    [str(program), word, str(file)], capture_output=True, text=True, check=True, timeout=LIMIT_S
                ).stdout
                for word in ("-sass", "-res-usage")
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return sass, read_usage(usage)

"""cuobjdump: what machine code a cubin holds, and what a kernel of it takes. It comes with Triton and with CUDA."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from runner.device import processes, tools
from runner.measure.inspect.assembly import Usage, read_usage

LIMIT_S = 120.0


@cache
def cuobjdump() -> Path | None:
    """Where it is: in Triton's wheel, else on PATH, else in /usr/local/cuda; None if nowhere."""
    triton = find_spec("triton")
    places = (triton and triton.submodule_search_locations) or ()
    bundled = [file for place in places if (file := Path(place, "backends/nvidia/bin/cuobjdump")).is_file()]
    found = bundled[0] if bundled else tools.find("cuobjdump")
    return Path(found) if found else None


def disassembled(cubin: bytes) -> tuple[str, Usage] | None:
    """The SASS of ``cubin``, and what its kernel takes; None where there is no cuobjdump, or it knows no such code."""
    program = cuobjdump()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        sass, usage = (processes.output([str(program), word, str(file)], LIMIT_S) for word in ("-sass", "-res-usage"))
    return None if sass is None or usage is None else (sass, read_usage(usage))

"""Kernels of CUDA C++ as machine code. Those of one file are compiled together, and disassembled in half a second.

Import this after ``pytest.importorskip`` of cuda.core and triton, which brings cuobjdump.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import triton
from cuda.core import Program, ProgramOptions

from runner.kernels import cuda_nvrtc

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
FLOAT64 = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX)\b|F2F\.F(64\.F32|32\.F64)|MUFU\.\w*64|I2F\.F64|F2I\.F64")
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Built:
    """A kernel: how often it has each instruction, the registers of a thread, and bytes of memory."""

    instructions: Counter[str]
    registers: int
    stack: int
    shared: int
    local: int

    def having(self, word: str) -> set[str]:
        """The instructions whose name begins with ``word``."""
        return {name for name in self.instructions if name.startswith(word)}

    @property
    def float64(self) -> bool:
        return any(map(FLOAT64.match, self.instructions))


@cache
def built(source: Path, names: Sequence[str], arch: str) -> dict[str, Built]:
    """Compile the kernels ``names`` of ``source`` with NVRTC as the project does. Return each by its name."""
    places = [str(place) for place in (source.parent, *cuda_nvrtc._headers())]
    options = ProgramOptions(name=str(source), arch=arch, include_path=places, **cuda_nvrtc.FLAGS)
    code = Program(source.read_text(encoding="utf-8"), "c++", options).compile("cubin", name_expressions=names)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(bytes(code.code))
        file.flush()
        command = [CUOBJDUMP, "-sass", "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {symbol: map(int, numbers) for symbol, *numbers in USAGE.findall(text)}
    parts = dict(part.split("\n", 1) for part in text.split("Function : ")[1:])
    symbols = {name: s.decode() if isinstance(s := code.symbol_mapping[name], bytes) else s for name in names}
    return {name: Built(Counter(INSTRUCTION.findall(parts[at])), *usage[at]) for name, at in symbols.items()}

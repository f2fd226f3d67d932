"""Readers of a kernel's code: PTX, SASS as cuobjdump prints it, and cuobjdump's table of resources.

SASS is what runs, so it is preferred to PTX. Widths are widths of single instructions, although the hardware combines
accesses of neighboring threads. Bulk copies (TMA) have no width and are counted separately.
"""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

from ...device import processes, tools

SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
PTX = re.compile(r"^\s*(?:@!?%?\w+\s+)?\{?\s*([a-z][\w:]*(?:\.[\w:]+)+)", re.MULTILINE)
PTX_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[\w.:]*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(0x[0-9a-f]+|\d+)")

TENSOR = {
    "sass": re.compile(r"(?:[HIDBQO]|HG|IG|QG|BG)MMA\b|UTC[A-Z]*MMA"),
    "ptx": re.compile(r"wgmma\.mma_async|mma\.sync|wmma\.mma|tcgen05\.mma"),
}
FP64 = {
    "sass": re.compile(r"D(?:ADD|MUL|FMA|SETP|MMA|MNMX)\b|F2F\.F(?:64\.|\d+\.F64)|MUFU\.\w+64H|I2F\.F64|F2I\.F64"),
    "ptx": re.compile(r"(?!ld|st|mov|cvta)[\w.:]*\.f64\b"),
}
BULK = {"sass": re.compile(r"UTMA(?:LDG|STG)|UBLKCP"), "ptx": re.compile(r"cp\.async\.bulk\.")}
BOUND = re.compile(r"^\s*\.(reqntid|maxntid|minnctapersm|maxnreg)\s+([\d, ]+)", re.MULTILINE)
REGISTERS = 255  # most that a thread can have
REGISTERS_OF_ALL, REGISTERS_AT_ONCE = 65_536, 8  # registers of a multiprocessor, and the unit of their allocation
GLOBAL = re.compile(r"(ld|st)\.(?:[\w:]+\.)*global\b(?:\.[\w:]+)*?(?:\.v(\d))?\.[busf](\d+)$")
WIDTH = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}  # SASS names no width for 32

LIMIT_S = 120.0  # for cuobjdump


@dataclass(frozen=True)
class Code:
    """Instructions in the code of one kernel, however often they run."""

    load_bits: int  # widest load from global memory; 0: none
    store_bits: int  # widest store to it
    tensor_instructions: int  # on tensor cores
    fp64_instructions: int  # in double precision
    bulk: int  # bulk copies
    by_name: Counter[str]  # all instructions
    fp64_names: Counter[str]  # double-precision instructions


def read_sass(text: str) -> Code:
    """Parse the output of ``cuobjdump -sass``."""
    names = Counter(SASS.findall(text))
    loads = [_sass_bits(name) for name in names if name.split(".")[0] in ("LDG", "LDGSTS")]
    stores = [_sass_bits(name) for name in names if name.split(".")[0] == "STG"]
    return _code("sass", names, loads, stores)


def read_ptx(text: str) -> Code:
    """Parse PTX."""
    names = Counter(PTX.findall(text))
    moves = [match for name in names if (match := GLOBAL.match(name))]
    bits = {kind: [int(m[2] or 1) * int(m[3]) for m in moves if m[1] == kind] for kind in ("ld", "st")}
    copies = [8 * int(size, 0) for size in PTX_COPY.findall(text)]
    return _code("ptx", names, bits["ld"] + copies, bits["st"])


def read_usage(text: str) -> tuple[int, int, int]:
    """Parse the output of ``cuobjdump -res-usage``: the largest values of any function.

    Return registers and bytes of local memory per thread, and bytes of static shared memory per block.
    """
    fields = {name: map(int, re.findall(rf"\b{name}:(\d+)", text)) for name in ("REG", "STACK", "SHARED")}
    return max(fields["REG"], default=0), max(fields["STACK"], default=0), max(fields["SHARED"], default=0)


def registers_allowed(ptx: str) -> int:
    """Return the largest number of registers per thread that the kernel's launch bounds allow."""
    bounds = {name: prod(int(number) for number in numbers.split(",")) for name, numbers in BOUND.findall(ptx)}
    threads = bounds.get("reqntid", bounds.get("maxntid", 1)) * bounds.get("minnctapersm", 1)
    share = REGISTERS_OF_ALL // threads // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE
    return min(REGISTERS, share, bounds.get("maxnreg", REGISTERS))


def _code(kind: str, names: Counter[str], loads: list[int], stores: list[int]) -> Code:
    tensor, fp64, bulk = (
        Counter({name: times for name, times in names.items() if pattern[kind].match(name)})
        for pattern in (TENSOR, FP64, BULK)
    )
    widest = max(loads, default=0), max(stores, default=0)
    return Code(*widest, tensor.total(), fp64.total(), bulk.total(), by_name=names, fp64_names=fp64)


def _sass_bits(name: str) -> int:
    return next((WIDTH[part] for part in name.split(".") if part in WIDTH), 32)


@cache
def cuobjdump() -> Path | None:
    """Return the path of cuobjdump in Triton's wheel, on PATH or in /usr/local/cuda; None if it is not there."""
    triton = find_spec("triton")
    locations = (triton and triton.submodule_search_locations) or ()
    bundled = [file for location in locations if (file := Path(location, "backends/nvidia/bin/cuobjdump")).is_file()]
    path = bundled[0] if bundled else tools.find_tool("cuobjdump")
    return Path(path) if path else None


def disassembled(cubin: bytes) -> tuple[str, tuple[int, int, int]] | None:
    """Return the SASS of ``cubin`` and its ``read_usage``; None without a cuobjdump that can read it."""
    if (program := cuobjdump()) is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        sass, usage = (processes.output([str(program), flag, str(file)], LIMIT_S) for flag in ("-sass", "-res-usage"))
    return None if sass is None or usage is None else (sass, read_usage(usage))

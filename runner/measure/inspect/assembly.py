"""What a kernel's code says of it: readers of PTX, of SASS as cuobjdump prints it, and of its table of resources.

SASS is what runs, so it counts where it can be had. Widths are of single instructions: what the hardware puts together
of neighbouring threads is another matter. Bulk copies (TMA) have no width; they are counted apart.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

from runner.device import processes, tools

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
REGISTERS = 255  # of a thread, at most
REGISTERS_OF_ALL, REGISTERS_AT_ONCE = 65_536, 8  # of a multiprocessor; and they are given out so many at a time
GLOBAL = re.compile(r"(ld|st)\.(?:[\w:]+\.)*global\b(?:\.[\w:]+)*?(?:\.v(\d))?\.[busf](\d+)$")
WIDTH = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}  # SASS says nothing for 32


@dataclass(frozen=True)
class Code:
    """What stands in the code of one kernel, however often it is run through."""

    load_bits: int  # widest load from global memory; 0: there is none
    store_bits: int  # widest store to it
    tensor: int  # instructions of tensor cores
    fp64: int  # instructions in double precision
    bulk: int  # bulk copies
    by_name: Counter[str]  # every instruction
    fp64_names: Counter[str]  # those in double precision


@dataclass(frozen=True)
class Usage:
    """What a thread, or a block, of a kernel takes."""

    registers: int
    stack_bytes: int  # local memory: registers spilled, and arrays that found no room in them
    shared_bytes: int  # without what a launch asks for beside


def read_sass(text: str) -> Code:
    """Read the output of ``cuobjdump -sass``."""
    names = Counter(SASS.findall(text))
    loads = [_sass_bits(name) for name in names if name.split(".")[0] in ("LDG", "LDGSTS")]
    stores = [_sass_bits(name) for name in names if name.split(".")[0] == "STG"]
    return _code("sass", names, loads, stores)


def read_ptx(text: str) -> Code:
    """Read PTX."""
    names = Counter(PTX.findall(text))
    moves = [match for name in names if (match := GLOBAL.match(name))]
    bits = {kind: [int(m[2] or 1) * int(m[3]) for m in moves if m[1] == kind] for kind in ("ld", "st")}
    copies = [8 * int(size, 0) for size in PTX_COPY.findall(text)]
    return _code("ptx", names, bits["ld"] + copies, bits["st"])


def read_usage(text: str) -> Usage:
    """Read the output of ``cuobjdump -res-usage``; the largest values of any function."""
    most = {what: max(map(int, re.findall(rf"\b{what}:(\d+)", text)), default=0) for what in ("REG", "STACK", "SHARED")}
    return Usage(most["REG"], most["STACK"], most["SHARED"])


def registers_allowed(ptx: str) -> int:
    """Registers that a thread of the kernel may have: what the bounds on its launch leave of 255."""
    told = {name: prod(int(number) for number in numbers.split(",")) for name, numbers in BOUND.findall(ptx)}
    threads = told.get("reqntid", told.get("maxntid", 1)) * told.get("minnctapersm", 1)
    share = REGISTERS_OF_ALL // threads // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE
    return min(REGISTERS, share, told.get("maxnreg", REGISTERS))


def _code(kind: str, names: Counter[str], loads: list[int], stores: list[int]) -> Code:
    def count(pattern: re.Pattern[str]) -> int:
        return sum(times for name, times in names.items() if pattern.match(name))

    return Code(
        load_bits=max(loads, default=0),
        store_bits=max(stores, default=0),
        tensor=count(TENSOR[kind]),
        fp64=count(FP64[kind]),
        bulk=count(BULK[kind]),
        by_name=names,
        fp64_names=Counter({name: times for name, times in names.items() if FP64[kind].match(name)}),
    )


def _sass_bits(name: str) -> int:
    return next((WIDTH[part] for part in name.split(".") if part in WIDTH), 32)


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

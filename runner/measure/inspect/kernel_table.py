"""The kernels of a call in a table, and their code in files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner import measure
from runner.measure.inspect.assembly import REGISTERS, Code, disassembled, read_ptx, read_sass, registers_allowed
from runner.measure.inspect.programs import Program, Seen

NAME = 100  # characters of a file's name
BY_NAME = "by name"
COLUMNS = (
    "kernel",
    "origin",
    "launches",
    "total_us",
    "registers",
    "spill_bytes",
    "shared_bytes",
    "load_bits",
    "store_bits",
    "tensor_instructions",
    "fp64_instructions",
)


@dataclass(frozen=True)
class Line:
    """A kernel. Of torch's own, and of those that a CUDA graph launches, only the first four are known."""

    kernel: str
    origin: str  # triton | inductor | cuda | BY_NAME
    launches: int  # in one call
    total_us: float | None = None  # of all of them, by CUPTI
    registers: int | None = None
    registers_allowed: int = REGISTERS
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    code: Code | None = None
    texts: Mapping[str, str] | None = None  # file's suffix → text


def lines(seen: Seen, times: Mapping[str, tuple[int, float]]) -> list[Line]:
    """The kernels that were seen, and those that CUPTI alone saw, the most time first.

    Two programs of one name, as of two types, share that name's time by their launches. How often a generated graph
    launches a kernel is not seen, so CUPTI says it.
    """
    same = Counter(_base(program.name) for program in seen.programs for _ in range(program.launches))
    known: Counter[str] = Counter()
    spent: dict[str, float] = {}
    for name, (launches, time_us) in times.items():
        known[_base(name)] += launches
        spent[_base(name)] = spent.get(_base(name), 0.0) + time_us
    found = []
    for program in seen.programs:
        base = _base(program.name)
        share = program.launches / same[base]
        if program.origin == "inductor" and share == 1 and known[base]:
            program = replace(program, launches=known[base])
        found.append(_line(program, spent[base] * share if base in spent else None))
    found += [
        Line(name, BY_NAME, launches, time_us) for name, (launches, time_us) in times.items() if _base(name) not in same
    ]
    return sorted(found, key=lambda line: -(line.total_us or 0.0))


def dominant(table: Sequence[Line]) -> Line | None:
    """The kernel that takes most of the time; without times, a guess by its launches and its code."""
    if any(line.total_us for line in table):
        return table[0]
    return max(table, key=lambda line: (line.launches, *_weight(line)), default=None)


def _weight(line: Line) -> tuple[int, int]:
    return (line.code.tensor, line.code.by_name.total()) if line.code else (0, 0)


def write(table: Sequence[Line], seen: Seen, folder: Path) -> None:
    """``kernels.csv``; each kernel's code by its name and stage; and each generated graph."""
    measure.write(folder / "kernels.csv", COLUMNS, map(_cells, table))
    taken: Counter[str] = Counter()
    for line in table:
        name = re.sub(r"\W+", "_", line.kernel).strip("_")[:NAME]
        taken[name] += 1
        again = f"-{taken[name]}" if taken[name] > 1 else ""  # another type, or other constants
        for stage, text in (line.texts or {}).items():
            (folder / f"{name}{again}.{stage}").write_text(text, encoding="utf-8")
    for number, graph in enumerate(seen.graphs):
        (folder / f"generated_{number}.py").write_text(graph.source_code, encoding="utf-8")


def summary(reason: str, table: Sequence[Line], notes: Sequence[str]) -> str:
    """What a person reads first."""
    told = [f"  why: {reason}"]
    for line in table:
        words = [f"{name} {value}" for name, value in list(_cells(line).items())[3:] if value not in (None, "")]
        told.append(f"  {line.launches}x {line.kernel} ({line.origin}): {', '.join(words) or 'nothing but its name'}")
    return "\n".join([*told, *(f"  {note}" for note in notes)]) + "\n"


def _line(program: Program, total_us: float | None) -> Line:
    ptx = program.texts.get("ptx", "")
    texts, code, allowed = dict(program.texts), read_ptx(ptx), registers_allowed(ptx)
    registers = stack = None
    shared = program.shared_bytes
    if (machine := disassembled(program.cubin)) is not None:
        texts["sass"], usage = machine
        code, registers, stack = read_sass(texts["sass"]), usage.registers, usage.stack_bytes
        shared += usage.shared_bytes
    return Line(
        program.name, program.origin, program.launches, total_us, registers, allowed, stack, shared, code, texts
    )


def _cells(line: Line) -> dict[str, object]:
    code = line.code
    read = [code.load_bits, code.store_bits, code.tensor, code.fp64] if code else [None] * 4
    time = None if line.total_us is None else round(line.total_us, 3)
    head = [line.kernel, line.origin, line.launches, time]
    return dict(zip(COLUMNS, [*head, line.registers, line.spill_bytes, line.shared_bytes, *read], strict=True))


def _base(name: str) -> str:
    """``gelu_kernel`` of ``void gelu_kernel<float, true>(long long)``."""
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]

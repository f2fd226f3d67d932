"""The kernels of a call as a table, and their code as files."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...records.case import Scalar
from ...records.figures import figure, unit_of
from .. import write_csv
from .assembly import REGISTERS, Code, disassembled, read_ptx, read_sass, registers_allowed
from .programs import Program, Seen

LONGEST_NAME = 100  # characters of a file's name
BY_NAME = "by name"
CODE_COLUMNS = ("load_bits", "store_bits", "tensor_instructions", "fp64_instructions")  # fields of Code in kernels.csv


@dataclass(frozen=True)
class KernelLine:
    """A kernel. Of torch's kernels and kernels in a CUDA graph, only the first four fields are known."""

    kernel: str
    origin: str  # triton | inductor | cuda | BY_NAME
    launches: int  # in one call
    total_us: float | None = None  # total of all launches, by CUPTI
    registers: int | None = None
    registers_allowed: int = REGISTERS
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    code: Code | None = None
    texts: Mapping[str, str] | None = None  # suffix of the file → text

    def cells(self) -> dict[str, Scalar | None]:
        """Return the line of kernels.csv."""
        names = ("kernel", "origin", "launches", "total_us", "registers", "spill_bytes", "shared_bytes")
        cells = {name: getattr(self, name) for name in names}
        cells["total_us"] = None if self.total_us is None else round(self.total_us, 3)
        return cells | {column: getattr(self.code, column, None) for column in CODE_COLUMNS}


def kernel_lines(seen: Seen, times: Mapping[str, tuple[int, float]]) -> list[KernelLine]:
    """Return the kernels in ``seen`` and the kernels that only CUPTI saw, the longest time first.

    ``times`` has launches and microseconds by CUPTI's name. Programs of one name, such as one for each of two types,
    share its time in proportion to their launches. Only CUPTI counts the launches of a kernel in a generated graph.
    """
    total_launches: Counter[str] = Counter()
    for program in seen.programs:
        total_launches[_base(program.name)] += program.launches
    lines = []
    launches: Counter[str] = Counter()
    time_us: dict[str, float] = {}
    for name, (count, us) in times.items():
        base = _base(name)
        launches[base] += count
        time_us[base] = time_us.get(base, 0.0) + us
        if base not in total_launches:
            lines.append(KernelLine(name, BY_NAME, count, us))
    for program in seen.programs:
        base = _base(program.name)
        share = program.launches / total_launches[base]
        if program.origin == "inductor" and share == 1 and launches[base]:
            program = replace(program, launches=launches[base])
        lines.append(_line(program, time_us[base] * share if base in time_us else None))
    return sorted(lines, key=lambda line: -(line.total_us or 0.0))


def dominant(table: Sequence[KernelLine]) -> KernelLine | None:
    """Return the kernel that takes most of the time; without times, the kernel with most launches, then most code."""
    if any(line.total_us for line in table):
        return table[0]
    sizes = {id(line): (line.code.tensor_instructions, line.code.by_name.total()) for line in table if line.code}
    return max(table, key=lambda line: (line.launches, sizes.get(id(line), (0, 0))), default=None)


def write_kernels(table: Sequence[KernelLine], seen: Seen, folder: Path) -> None:
    """Write ``kernels.csv``, a file for each kernel and stage of its code, and a file for each generated graph."""
    write_csv(folder / "kernels.csv", [line.cells() for line in table], list(KernelLine("", BY_NAME, 0).cells()))
    taken: Counter[str] = Counter()
    for line in table:
        name = re.sub(r"\W+", "_", line.kernel).strip("_")[:LONGEST_NAME]
        taken[name] += 1
        number = f"-{taken[name]}" if taken[name] > 1 else ""  # the same kernel for another type or other constants
        for stage, text in (line.texts or {}).items():
            (folder / f"{name}{number}.{stage}").write_text(text, encoding="utf-8")
    for order, graph in enumerate(seen.graphs):
        (folder / f"generated_{order}.py").write_text(graph.source_code, encoding="utf-8")


def kernel_summary(reason: str, table: Sequence[KernelLine], notes: Sequence[str]) -> str:
    """Return the text of summary.txt."""
    text = [f"  why: {reason}"]
    for line in table:
        known = {name: cell for name, cell in [*line.cells().items()][3:] if cell is not None}
        words = [f"{name} {figure(cell, unit_of(name))}" for name, cell in known.items()]
        text.append(f"  {line.launches}x {line.kernel} ({line.origin}): {', '.join(words) or 'only its name is known'}")
    return "\n".join([*text, *(f"  {note}" for note in notes), ""])


def _line(program: Program, total_us: float | None) -> KernelLine:
    ptx = program.texts.get("ptx", "")
    line = KernelLine(program.name, program.origin, program.launches, total_us, texts=program.texts)
    line = replace(line, registers_allowed=registers_allowed(ptx), shared_bytes=program.shared_bytes)
    if (machine := disassembled(program.cubin)) is None:
        return replace(line, code=read_ptx(ptx))
    sass, (registers, spill_bytes, static_bytes) = machine
    line = replace(line, code=read_sass(sass), texts={**program.texts, "sass": sass})
    shared_bytes = program.shared_bytes + static_bytes
    return replace(line, registers=registers, spill_bytes=spill_bytes, shared_bytes=shared_bytes)


def _base(name: str) -> str:
    """Return ``gelu_kernel`` for ``void gelu_kernel<float, true>(long long)``."""
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]

"""The kernels of a call as a table, and their code as files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.experiment.case import Scalar
from runner.experiment.results import figure, unit_of
from runner.measure import write_csv
from runner.measure.inspect.assembly import REGISTERS, Code, disassembled, read_ptx, read_sass, registers_allowed
from runner.measure.inspect.programs import Program, Seen

LONGEST_NAME = 100  # characters of a file's name
BY_NAME = "by name"


@dataclass(frozen=True)
class Line:
    """A kernel. For torch's own kernels and for those in a CUDA graph, only the first four fields are known."""

    kernel: str
    origin: str  # triton | inductor | cuda | BY_NAME
    launches: int  # in one call
    total_us: float | None = None  # of all launches, by CUPTI
    registers: int | None = None
    registers_allowed: int = REGISTERS
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    code: Code | None = None
    texts: Mapping[str, str] | None = None  # suffix of the file → text

    def cells(self) -> dict[str, Scalar | None]:
        """Return the line of kernels.csv."""
        code = self.code
        return {
            "kernel": self.kernel,
            "origin": self.origin,
            "launches": self.launches,
            "total_us": None if self.total_us is None else round(self.total_us, 3),
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "shared_bytes": self.shared_bytes,
            "load_bits": code.load_bits if code else None,
            "store_bits": code.store_bits if code else None,
            "tensor_instructions": code.tensor if code else None,
            "fp64_instructions": code.fp64 if code else None,
        }


def lines(seen: Seen, times: Mapping[str, tuple[int, float]]) -> list[Line]:
    """Return the kernels in ``seen``, and those that only CUPTI saw, the longest time first.

    ``times`` has launches and microseconds by CUPTI's name. Programs of one name, such as those of two types, share
    that name's time by their launches. The launches of a kernel in a generated graph are CUPTI's, since they are not
    recorded otherwise.
    """
    same: Counter[str] = Counter()
    for program in seen.programs:
        same[_base(program.name)] += program.launches
    launches: Counter[str] = Counter()
    time_us: dict[str, float] = {}
    for name, (count, us) in times.items():
        launches[_base(name)] += count
        time_us[_base(name)] = time_us.get(_base(name), 0.0) + us
    found = [Line(name, BY_NAME, count, us) for name, (count, us) in times.items() if _base(name) not in same]
    for program in seen.programs:
        base = _base(program.name)
        share = program.launches / same[base]
        if program.origin == "inductor" and share == 1 and launches[base]:
            program = replace(program, launches=launches[base])
        found.append(_line(program, time_us[base] * share if base in time_us else None))
    return sorted(found, key=lambda line: -(line.total_us or 0.0))


def dominant(table: Sequence[Line]) -> Line | None:
    """Return the kernel that takes most of the time; without times, the likeliest by its launches and its code."""
    if any(line.total_us for line in table):
        return table[0]
    sizes = {id(line): (line.code.tensor, line.code.by_name.total()) for line in table if line.code}
    return max(table, key=lambda line: (line.launches, sizes.get(id(line), (0, 0))), default=None)


def write(table: Sequence[Line], seen: Seen, folder: Path) -> None:
    """Write ``kernels.csv``, a file for each kernel and stage of its code, and a file for each generated graph."""
    write_csv(folder / "kernels.csv", list(Line("", BY_NAME, 0).cells()), [line.cells() for line in table])
    taken: Counter[str] = Counter()
    for line in table:
        name = re.sub(r"\W+", "_", line.kernel).strip("_")[:LONGEST_NAME]
        taken[name] += 1
        number = f"-{taken[name]}" if taken[name] > 1 else ""  # another type, or other constants
        for stage, text in (line.texts or {}).items():
            (folder / f"{name}{number}.{stage}").write_text(text, encoding="utf-8")
    for order, graph in enumerate(seen.graphs):
        (folder / f"generated_{order}.py").write_text(graph.source_code, encoding="utf-8")


def summary(reason: str, table: Sequence[Line], notes: Sequence[str]) -> str:
    """Return the text of summary.txt."""
    text = [f"  why: {reason}"]
    for line in table:
        words = [
            f"{name} {figure(value, unit_of(name))}" for name, value in [*line.cells().items()][3:] if value is not None
        ]
        text.append(f"  {line.launches}x {line.kernel} ({line.origin}): {', '.join(words) or 'only its name is known'}")
    return "\n".join([*text, *(f"  {note}" for note in notes), ""])


def _line(program: Program, total_us: float | None) -> Line:
    ptx = program.texts.get("ptx", "")
    line = Line(program.name, program.origin, program.launches, total_us, registers_allowed=registers_allowed(ptx))
    machine = disassembled(program.cubin)
    if machine is None:
        return replace(line, shared_bytes=program.shared_bytes, code=read_ptx(ptx), texts=program.texts)
    sass, usage = machine
    return replace(
        line,
        registers=usage.registers,
        spill_bytes=usage.stack_bytes,
        shared_bytes=program.shared_bytes + usage.shared_bytes,
        code=read_sass(sass),
        texts={**program.texts, "sass": sass},
    )


def _base(name: str) -> str:
    """Return ``gelu_kernel`` for ``void gelu_kernel<float, true>(long long)``."""
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]

"""The words of ``nsys profile`` and ``nsys export``, as the version at hand understands them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.device.processes import output

# Sampling the CPU is nsys's own default, and makes tens of megabytes of a second of Python. Without nodes, kernels of a
# CUDA graph are one record of the whole graph. At the end of a range nsys would end the program, and its results.
COMMON = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")
PRESETS = {
    "light": ("--trace=cuda,nvtx", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "full": ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"),
}
SHORT = {  # of options that are ours: nsys refuses one that is there twice
    "-t": "--trace",
    "-s": "--sample",
    "-c": "--capture-range",
    "-f": "--force-overwrite",
    "-o": "--output",
}


@dataclass(frozen=True)
class Command:
    """An nsys and the options to give it. ``notes``: which of the preset it does not have."""

    program: str
    options: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: str, preset: str, args: Sequence[str]) -> Command:
        """The options of ``preset`` that ``program`` has, and ``args``, which replace those of the same name.

        Options have changed their names between versions: its own help says which there are. If it does not say,
        all are given.
        """
        known = set(re.findall(r"--[a-z][a-z-]+", output([program, "profile", "--help"]) or ""))
        given = {_name(word) for word in args}
        if "--capture-range=none" in args:
            given.add("--capture-range-end")  # which nsys refuses then
        wanted = [word for word in (*PRESETS[preset], *COMMON) if _name(word) not in given]
        missing = [word for word in wanted if known and _name(word) not in known]
        notes = [f"this nsys has no {_name(word)}" for word in missing]
        return cls(program, (*(word for word in wanted if word not in missing), *args), tuple(notes))

    def profile(self, report: Path, case: Sequence[str]) -> list[str]:
        """``case`` under nsys, which adds its suffix to ``report``. No ``--`` before the program: nsys refuses that."""
        place = str(report.absolute()).replace("%", "%%")  # nsys takes %h and %p for names
        return [self.program, "profile", *self.options, f"--output={place}", *case]

    def export(self, report: Path, database: Path) -> list[str]:
        """``report`` as an SQLite file."""
        options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
        return [self.program, "export", *options, str(report)]


def _name(word: str) -> str:
    """``--trace`` of ``--trace=cuda``, and of ``-t``."""
    name = word.partition("=")[0]
    return SHORT.get(name[:2], name) if not name.startswith("--") else name

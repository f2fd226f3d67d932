"""``measure=profile``: what a call is made of, by torch.profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from runner import measure
from runner.experiment.case import Scalar
from runner.measure import SUMMARY, CannotMeasure, MeasureContext
from runner.measure.profile import flame, tables, trace

if TYPE_CHECKING:
    from runner.timing import Call

TRACE, FOLDED, FLAME = "trace.json.gz", "stacks.txt", "flame.svg"
DIGITS = 6  # in tables


@dataclass(frozen=True)
class Profile:
    """Operations and kernels of a call, in tables, a trace and a flame graph."""

    calls: Annotated[int, "at least 1"]
    warmup: Annotated[int, "at least 1"]
    cold_l2: bool
    rows: Annotated[int, "at least 1"]
    shapes: bool
    stacks: bool
    memory: bool
    flops: bool

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Figures of ``call`` while it is profiled; tables and graphs of it are in the context's folder.

        Raises CannotMeasure if the profiler is not there, or saw no call or no kernel.
        """
        from runner.measure.profile import profiled

        folder, gpu = context.folder, context.device == "cuda"
        taken = profiled.profile(call, context.device, self, folder / TRACE)
        calls = _seen(folder / TRACE, gpu)
        figures: dict[str, Scalar] = tables.columns(calls) if gpu else {}
        notes = [taken.note, tables.note(calls, context.expected) if gpu else ""]
        figures |= {"profile_slowdown": taken.slowdown, "profile_note": "; ".join(filter(None, notes))}

        found = {"ops": tables.ops(calls, shapes=self.shapes, gpu=gpu), "parts": tables.parts(calls, gpu=gpu)}
        if gpu:
            found["kernels"] = tables.kernels(calls, shapes=self.shapes)
        in_python = calls
        if self.stacks or self.memory or self.flops:
            slow = folder / f"slow-{TRACE}"  # no trace for people: it is mostly of its own making
            found["costs"] = profiled.again(call, context.device, self, slow)
            in_python = _seen(slow, gpu) if self.stacks else calls
            slow.unlink()
        for name, lines in found.items():
            _write(folder / f"{name}.csv", lines)
        _draw(folder, flame.of_gpu(in_python) if gpu else flame.of_host(in_python), gpu)
        text = tables.text(figures, found, len(calls), self.rows)
        (folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures


def _seen(path: Path, gpu: bool) -> list[trace.Call]:
    """The calls of the trace at ``path``, with kernels if they are to have some. Raises CannotMeasure."""
    try:
        calls = trace.read(path)
    except (ValueError, KeyError) as error:
        raise CannotMeasure(f"torch.profiler's trace cannot be read: {error}; it is kept at {path}") from error
    if not calls:
        raise CannotMeasure("torch.profiler recorded none of its calls; worker.log may say why")
    if gpu and not all(call.work for call in calls):
        raise CannotMeasure(
            "torch.profiler saw no kernel, copy or fill in a call: run it without nsys, ncu or Proton, since one "
            "program at a time can have CUPTI; else worker.log may say why"
        )
    return calls


def _write(path: Path, lines: Sequence[tables.Line]) -> None:
    """``lines`` as CSV; no file if there are none."""
    if not lines:
        return
    shortened = ({name: _short(cell) for name, cell in line.items()} for line in lines)
    measure.write(path, list(lines[0]), shortened)


def _short(cell: object) -> object:
    """Numbers without the digits that adding them up has made."""
    return round(cell, DIGITS) if isinstance(cell, float) else cell


def _draw(folder: Path, found: flame.Stacks, gpu: bool) -> None:
    """The stacks, and a flame graph of what has been written."""
    text = flame.folded(found)
    (folder / FOLDED).write_text(text, encoding="utf-8")
    what = "time of kernels, by what launches them" if gpu else "time on the host, by what spends it"
    (folder / FLAME).write_text(flame.draw(flame.unfolded(text), f"One call: {what}"), encoding="utf-8")

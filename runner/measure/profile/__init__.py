"""``measure=profile``: what a call is made of, by torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from runner.experiment.case import Scalar
from runner.measure import SUMMARY, CannotMeasure, MeasureContext
from runner.measure.profile import flame
from runner.measure.timeline import Call as ProfiledCall
from runner.measure.timeline import Event, Kind, calls, tables

if TYPE_CHECKING:
    from runner.timing import Call

TRACE, FOLDED, FLAME = "trace.json.gz", "stacks.txt", "flame.svg"
STEP = "ProfilerStep#"  # torch.profiler's own annotation around each of ours
KINDS: dict[str, Kind] = {  # by the category in a Chrome trace
    "cpu_op": "op",
    "user_annotation": "span",
    "python_function": "python",
    "cuda_runtime": "api",
    "cuda_driver": "api",  # Triton launches by the driver
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
}
DETAILS = {  # name in the trace → column
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "est. achieved occupancy %": "occupancy_pct",
    "bytes": "bytes",  # of a copy or fill
    "stream": "stream",
}


COLUMNS = tables.columns("profile", "torch.profiler")


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
        seen = _seen(folder / TRACE, gpu)
        figures: dict[str, Scalar] = tables.figures(seen, "profile") if gpu else {}
        notes = [taken.note, tables.note(seen, context.expected) if gpu else ""]
        figures |= {"profile_slowdown": taken.slowdown, "profile_note": "; ".join(filter(None, notes))}

        found = tables.tables(seen, shapes=self.shapes, gpu=gpu)
        in_python = seen
        if self.stacks or self.memory or self.flops:
            slow = folder / f"slow-{TRACE}"  # no trace for people: it is mostly of its own making
            if costs := profiled.again(call, context.device, self, slow):
                found["costs"] = costs
            in_python = _seen(slow, gpu) if self.stacks else seen
            slow.unlink()
        tables.write(found, folder)
        _draw(folder, flame.of_gpu(in_python) if gpu else flame.of_host(in_python), gpu)
        note = f" ({figures['profile_note']})" if figures["profile_note"] else ""
        head = f"of one call, the mean of {len(seen)}{note}; under the profiler a call takes {taken.slowdown:.2f} x"
        text = tables.text([*tables.on_gpu(figures, "profile"), head], found, self.rows)
        (folder / SUMMARY).write_text(text, encoding="utf-8")
        return figures


def _seen(path: Path, gpu: bool) -> list[ProfiledCall]:
    """The calls of the trace at ``path``, with kernels if they are to have some. Raises CannotMeasure."""
    try:
        found, _ = calls(read(path))
    except (ValueError, KeyError) as error:
        raise CannotMeasure(f"torch.profiler's trace cannot be read: {error}; it is kept at {path}") from error
    if not found:
        raise CannotMeasure("torch.profiler recorded none of its calls; worker.log may say why")
    if gpu and not all(call.work for call in found):
        raise CannotMeasure(
            "torch.profiler saw no kernel, copy or fill in a call: run it without nsys, ncu or Proton, since one "
            "program at a time can have CUPTI; else worker.log may say why"
        )
    return found


def read(path: Path) -> list[Event]:
    """The events of the gzipped Chrome trace at ``path``. Raises OSError, or ValueError if it is no trace."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        content = json.load(file, strict=False)  # kernels' names may hold control characters
    return [*events(content["traceEvents"])]


def events(records: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Those of the ``traceEvents`` of a Chrome trace that are of interest here.

    "External id" would tell of launches what "correlation" does, but versions of torch fill it in differently.
    """
    for record in records:
        kind = KINDS.get(record.get("cat", "")) if record.get("ph") == "X" else None
        if kind is None or str(record["name"]).startswith(STEP):
            continue
        given, start = record.get("args", {}), float(record["ts"])
        yield Event(
            name=str(record["name"]),
            kind=kind,
            start=start,
            end=start + float(record.get("dur", 0.0)),
            lane=(record.get("pid"), record.get("tid")),
            correlation=given.get("correlation") or None,
            details={DETAILS[name]: _text(value) for name, value in given.items() if name in DETAILS},
            shapes=" ".join("x".join(map(str, size)) for size in given.get("Input Dims") or () if size),
        )


def _text(value: object) -> object:
    return "x".join(map(str, value)) if isinstance(value, list) else value


def _draw(folder: Path, found: flame.Stacks, gpu: bool) -> None:
    """The stacks, and a flame graph of what has been written."""
    text = flame.folded(found)
    (folder / FOLDED).write_text(text, encoding="utf-8")
    what = "time of kernels, by what launches them" if gpu else "time on the host, by what spends it"
    (folder / FLAME).write_text(flame.draw(flame.unfolded(text), f"One call: {what}"), encoding="utf-8")

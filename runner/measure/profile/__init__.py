"""``measure=profile``: the operations and kernels of a call, by torch.profiler."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ...records.case import Scalar
from ...records.columns import Column
from ...timing.call import Call
from .. import CannotMeasure, MeasureContext
from ..timeline import ApiCall, Event, Kind, calls, collectives, sizes_text, tables
from . import flame

TRACE = "trace.json.gz"
STEP = "ProfilerStep#"  # torch.profiler's own annotation around each call

KINDS: dict[str, Kind] = {  # by the category in a Chrome trace
    "cpu_op": "op",
    "user_annotation": "span",
    "python_function": "python",
    "cuda_runtime": "api",
    "cuda_driver": "api",  # Triton launches through the driver
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
    "bytes": "bytes",  # size of a copy or fill
    "stream": "stream",
}

COLUMNS = (
    tables.columns("profile", "torch.profiler")
    | tables.PARTS
    | collectives.COLUMNS
    | {"profile_steps": Column("", "calls that torch.profiler recorded: repeat times active, fewer if they are long")}
)


@dataclass(frozen=True)
class Profile:
    """Operations and kernels of a call, in tables, a trace and a flame graph."""

    wait: Annotated[int, "at least 0"]
    warmup: Annotated[int, "at least 1"]
    active: Annotated[int, "at least 1"]
    repeat: Annotated[int, "at least 1"]
    cold_l2: bool
    rows: Annotated[int, "at least 1"]
    shapes: bool
    stacks: bool
    memory: bool
    flops: bool

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of ``call`` under the profiler; write tables and graphs into the context's folder.

        Raises CannotMeasure if the profiler saw no call, or no kernel on a GPU.
        """
        from . import profiled

        folder, gpu = context.folder, context.device == "cuda"
        slowdown, note, traces = profiled.record_profile(call, context.device, self, folder / TRACE)
        seen = recorded_calls(traces, gpu)
        figures: dict[str, Scalar] = tables.figures(seen, "profile") | collectives.figures(seen) if gpu else {}
        notes = [note, tables.note(seen, context.figures) if gpu else "", context.of_rank]
        figures |= {"profile_slowdown": slowdown, "profile_note": "; ".join(filter(None, notes))}
        figures |= {"profile_steps": len(seen)} | tables.part_times(seen)

        by_name = tables.tables(seen)
        in_stacks = seen
        if self.stacks or self.memory or self.flops:
            slow = folder / f"slow-{TRACE}"  # deleted below: most of its time is the profiler's own
            costs, traces = profiled.record_details(call, context.device, self, slow)
            if costs:
                by_name["costs"] = costs
            in_stacks = recorded_calls(traces, gpu) if self.stacks else seen
            for trace in traces:
                trace.unlink()
        stacks = flame.of_gpu(in_stacks) if gpu else flame.of_host(in_stacks)
        title = "time of kernels, by what launches them" if gpu else "time on the host, by what spends it"
        (folder / "stacks.txt").write_text(flame.folded(stacks), encoding="utf-8")
        (folder / "flame.svg").write_text(flame.draw(stacks, f"One call: {title}"), encoding="utf-8")
        note = f" ({figures['profile_note']})" if figures["profile_note"] else ""
        head = f"means of {len(seen)} calls{note}; under the profiler a call takes {slowdown:.2f}x the time"
        tables.write(folder, [*tables.gpu_sentences(figures, "profile"), head], by_name, self.rows)
        return figures


def recorded_calls(paths: Iterable[Path], gpu: bool) -> list[ApiCall]:
    """Return the calls of the traces at ``paths``. Raises CannotMeasure if there is none, or one without GPU work."""
    recorded = [call for path in paths for call in calls(read_trace(path))[0]]
    if not recorded:
        raise CannotMeasure("torch.profiler recorded no call; worker.log may say why")
    if gpu and not all(call.work for call in recorded):
        raise CannotMeasure(
            "torch.profiler saw no kernel, copy or fill in a call: run it without nsys, ncu or Proton, since only one "
            "program at a time can use CUPTI; worker.log may say more"
        )
    return recorded


def read_trace(path: Path) -> list[Event]:
    """Return the events of the gzipped Chrome trace at ``path``. Raises OSError, or ValueError if it is not a trace."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        content = json.load(file, strict=False)  # kernels' names may contain control characters
    return [*events(content["traceEvents"])]


def events(records: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the events of the time line from the ``traceEvents`` of a Chrome trace.

    Launches are linked by "correlation", since versions of torch fill in "External id" differently.
    """
    for record in records:
        kind = KINDS.get(record.get("cat", "")) if record.get("ph") == "X" else None
        if kind is None or str(record["name"]).startswith(STEP):
            continue
        arguments, start = record.get("args", {}), float(record["ts"])
        details = {DETAILS[name]: value for name, value in arguments.items() if name in DETAILS}
        yield Event(
            name=str(record["name"]),
            kind=kind,
            start=start,
            end=start + float(record.get("dur", 0.0)),
            thread=(record.get("pid"), record.get("tid")),
            correlation=arguments.get("correlation") or None,
            details={key: sizes_text([value]) if isinstance(value, list) else value for key, value in details.items()},
            shapes=sizes_text(arguments.get("Input Dims")),
            node=arguments.get("Sequence number"),
            is_backward=bool(arguments.get("Fwd thread id")),
        )

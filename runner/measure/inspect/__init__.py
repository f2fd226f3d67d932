"""``measure=inspect``: the code that runs, and why it is fast or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.kernels.unsupported import Unsupported
from runner.measure import SUMMARY, CannotMeasure, MeasureContext, Quantity
from runner.measure.inspect.why import Facts, why

if TYPE_CHECKING:
    from runner.measure.inspect.programs import Seen
    from runner.timing import Call

NOTHING = {
    "cuda": "no kernel with readable code was launched: only those of Triton, torch.compile and CUDA C++ have it, and "
    "only outside of a CUDA graph",
    "cpu": "torch's own operators on a CPU show no code; impl=compiled shows the C++ that it generates, and "
    "measure.inspect.arch=90 what Triton and CUDA C++ would run on such a GPU",
}

COLUMNS: dict[str, Column] = {
    "why": Column("", "why the call is fast or slow, by its figures and by the code that ran"),
    "kernel_name": Column("", "kernel that takes most of a call's time; the following columns describe its code"),
    "kernel_registers": Column("", "registers per thread"),
    "kernel_spill_bytes": Column(
        "byte", "local memory per thread: spilled registers and arrays without registers", "lower"
    ),
    "kernel_shared_bytes": Column("byte", "shared memory per block"),
    "load_bits": Column("bit", "widest load from global memory by one instruction of a thread; bulk copies have none"),
    "store_bits": Column("bit", "widest store to global memory by one instruction of a thread"),
    "tensor_instructions": Column("", "tensor-core instructions in the code, however often they run"),
    "fp64_instructions": Column("", "double-precision instructions in the code"),
}

SIDE_BY_SIDE = (
    Quantity("time", "total_us", "call"),
    Quantity("launches", "launches", "call"),
    Quantity("longest kernel", "kernel_name"),
    Quantity("registers per thread", "kernel_registers"),
    Quantity("spills per thread", "kernel_spill_bytes"),
    Quantity("shared memory per block", "kernel_shared_bytes"),
    Quantity("widest load", "load_bits"),
    Quantity("widest store", "store_bits"),
    Quantity("tensor-core instructions", "tensor_instructions"),
    Quantity("double-precision instructions", "fp64_instructions"),
)


@dataclass(frozen=True)
class Inspect:
    """The code of the kernels that one call launches, and what it says about their speed."""

    reference: str | None
    arch: Annotated[int, "at least 1"] | None

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of the kernel that takes most of the time; write the code of all kernels as files.

        Raises CannotMeasure if no code was seen.
        """
        from runner.measure.inspect.programs import compiling_for, seeing

        call.restore()
        with compiling_for(self.arch, without_gpu=context.device == "cpu") if self.arch else seeing() as seen:
            call.run()
        call.restore()
        times: Mapping[str, tuple[int, float]] = {}
        if context.device == "cuda" and not self.arch:
            from runner.timing.cupti import each_kernel

            times = each_kernel(call.run, call.restore)
        return self._figures(seen, times, context)

    def compile_only(self, run: Callable[[], object], context: MeasureContext) -> dict[str, Scalar] | None:
        """Return the same for a call that cannot run here, compiled for ``arch``; None without ``arch``.

        Raises CannotMeasure if the call needs a GPU to be compiled.
        """
        if not self.arch:
            return None
        from runner.measure.inspect.programs import compiling_for

        try:
            with compiling_for(self.arch, without_gpu=True) as seen:
                run()
        except Unsupported:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotMeasure(f"it needs a GPU ({reason}); run it on a machine that has one") from error
        return self._figures(seen, {}, context)

    def _figures(
        self, seen: Seen, times: Mapping[str, tuple[int, float]], context: MeasureContext
    ) -> dict[str, Scalar]:
        """Write the files and return the figures."""
        from runner.measure.inspect.kernel_table import dominant, lines, summary, write

        if not (seen.programs or seen.graphs or seen.unread or times):
            raise CannotMeasure(NOTHING[context.device])
        table = lines(seen, times)
        main = dominant(table)
        fields = context.case.workload.fields if context.case else {}
        facts = Facts(
            context.figures,
            dtype=str(fields.get("dtype", "")),
            tf32=bool(fields.get("tf32")),
            main=main,
            launches=sum(line.launches for line in table),
            graphs=len(seen.graphs),
            device=context.device,
            arch=self.arch,
        )
        reason = why(facts)
        write(table, seen, context.folder)
        notes = [f"not read: {note}" for note in seen.unread]
        if self.arch:
            notes.append("this machine's GPU, or its absence, decides which kernels and tiles are chosen")
        if context.case and context.case.impl.name == "compiled":
            notes += compilations()
        (context.folder / SUMMARY).write_text(summary(reason, table, notes), encoding="utf-8")
        cells = main.cells() if main else {}
        figures = {"why": reason, "kernel_name": cells.get("kernel")}
        figures |= {f"kernel_{name}": cells.get(name) for name in ("registers", "spill_bytes", "shared_bytes")}
        figures |= {name: cells.get(name) for name in COLUMNS if name not in figures}
        return {name: value for name, value in figures.items() if value is not None}


def compilations() -> list[str]:
    """Return a line for each graph break and each recompilation since the case began, with torch's reason."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    found = [f"graph break, {times}x: {reason.strip()}" for reason, times in counters["graph_break"].items()]
    for metrics in get_compilation_metrics():
        if reason := getattr(metrics, "recompile_reason", None):
            found.append(f"compiled again: {reason.strip()}")
    return [line.splitlines()[0] for line in found]

"""``measure=inspect``: the code of the kernels that run, and why it is fast or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ...kernels.unsupported import Unsupported
from ...records.case import Scalar
from ...records.columns import Column
from ...timing.call import Call
from .. import SUMMARY, CannotMeasure, MeasureContext
from ..columns import ComparedQuantity
from .why import Facts, explain

if TYPE_CHECKING:
    from .programs import Seen

Times = Mapping[str, tuple[int, float]]  # name of a kernel by CUPTI → its launches, and their time in us

NOTHING = {
    "cuda": "no kernel with readable code was launched: only Triton, torch.compile and CUDA C++ have it, and "
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
    ComparedQuantity("time", "total_us", "call"),
    ComparedQuantity("launches", "launches", "call"),
    ComparedQuantity("longest kernel", "kernel_name"),
    ComparedQuantity("registers per thread", "kernel_registers"),
    ComparedQuantity("spills per thread", "kernel_spill_bytes"),
    ComparedQuantity("shared memory per block", "kernel_shared_bytes"),
    ComparedQuantity("widest load", "load_bits"),
    ComparedQuantity("widest store", "store_bits"),
    ComparedQuantity("tensor-core instructions", "tensor_instructions"),
    ComparedQuantity("double-precision instructions", "fp64_instructions"),
)


@dataclass(frozen=True)
class Inspect:
    """The code of the kernels that one call launches, and reasons for their speed."""

    reference: str | None
    arch: Annotated[int, "at least 1"] | None

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Return figures of the kernel that takes most of the time; write the code of all kernels as files.

        Raises CannotMeasure if no code was seen.
        """
        from .programs import compiling_for, seeing

        call.restore()
        with compiling_for(self.arch, without_gpu=context.device == "cpu") if self.arch else seeing() as seen:
            call.run()
        call.restore()
        times: Times = {}
        if context.device == "cuda" and not self.arch:
            from ...timing.cupti import each_kernel

            times = each_kernel(call.run, call.restore)
        return self._figures(seen, times, context)

    def compile_only(self, load: Callable[[], Call], context: MeasureContext) -> dict[str, Scalar] | None:
        """Return the same figures for a call that cannot run here, compiled for ``arch``; None without ``arch``.

        ``load`` returns the call. Raises CannotMeasure if compiling needs a GPU.
        """
        if not self.arch:
            return None
        from ...kernels.cuda_function import BadCall
        from ...kernels.cuda_kernel import BuildFailed
        from .programs import compiling_for

        try:
            with compiling_for(self.arch, without_gpu=True):
                call = load()  # a script runs its kernels
            with compiling_for(self.arch, without_gpu=True) as seen:
                call.run()
        except (Unsupported, BuildFailed, BadCall):
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotMeasure(f"compiling needs a GPU ({reason}); run it on a machine that has one") from error
        return self._figures(seen, {}, context)

    def _figures(self, seen: Seen, times: Times, context: MeasureContext) -> dict[str, Scalar]:
        """Write the files and return the figures."""
        from .kernel_table import dominant, kernel_lines, kernel_summary, write_kernels

        if not (seen.programs or seen.graphs or seen.unread or times):
            raise CannotMeasure(NOTHING[context.device])
        table = kernel_lines(seen, times)
        main = dominant(table)
        fields = context.case.workload.fields
        dtype, tf32 = str(fields.get("dtype", "")), bool(fields.get("tf32"))
        launches, graphs = sum(line.launches for line in table), len(seen.graphs)
        reason = explain(Facts(context.figures, dtype, tf32, main, launches, graphs, context.device, self.arch))
        write_kernels(table, seen, context.folder)
        notes = [f"not read: {note}" for note in seen.unread]
        if self.arch:
            notes.append("kernels and tiles were chosen for this machine's GPU, or for none")
        if context.case.impl.name == "compiled":
            notes += compilations()
        (context.folder / SUMMARY).write_text(kernel_summary(reason, table, notes), encoding="utf-8")
        cells = {f"kernel_{name}": cell for name, cell in main.cells().items()} | main.cells() if main else {}
        figures = {"why": reason, "kernel_name": cells.get("kernel"), **cells}
        return {name: figures[name] for name in COLUMNS if figures.get(name) is not None}


def compilations() -> list[str]:
    """Return a line for each graph break and each recompilation since the case began, with torch's reason."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    lines = [f"graph break, {times}x: {reason.strip()}" for reason, times in counters["graph_break"].items()]
    for metrics in get_compilation_metrics():
        if reason := getattr(metrics, "recompile_reason", None):
            lines.append(f"compiled again: {reason.strip()}")
    return [text.splitlines()[0] for text in lines]

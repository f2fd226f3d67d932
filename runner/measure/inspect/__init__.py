"""``measure=inspect``: what runs, and why it is fast or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from runner.experiment.case import Scalar
from runner.experiment.columns import Column
from runner.kernels.unsupported import Unsupported
from runner.measure import SUMMARY, CannotMeasure, MeasureContext
from runner.measure.inspect.assembly import REGISTERS, Code
from runner.measure.inspect.why import Facts, why

if TYPE_CHECKING:
    from runner.measure.inspect.kernel_table import Line
    from runner.measure.inspect.programs import Seen
    from runner.timing import Call

NOTHING = {
    "cuda": "it launched no kernel whose code can be had, as that of Triton's, torch.compile's and CUDA C++'s can be, "
    "unless a CUDA graph launches them",
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


@dataclass(frozen=True)
class Inspect:
    """The code of the kernels that one call launches, for the very types and sizes; and what it says of their speed."""

    arch: Annotated[int, "at least 1"] | None

    def measure(self, call: Call, context: MeasureContext) -> dict[str, Scalar]:
        """Figures of the kernel that takes most of the time; files of all of them."""
        from runner.measure.inspect.programs import compiling_for, seeing

        call.restore()
        with compiling_for(self.arch, without_gpu=context.device == "cpu") if self.arch else seeing() as seen:
            call.run()
        call.restore()
        times = _times(call) if context.device == "cuda" and not self.arch else {}
        return self._tell(seen, times, context)

    def foresee(self, run: Callable[[], object], context: MeasureContext) -> dict[str, Scalar] | None:
        """The same of a call that cannot run here, compiled for ``arch``; None if none is asked for."""
        if not self.arch:
            return None
        from runner.measure.inspect.programs import compiling_for

        try:
            with compiling_for(self.arch, without_gpu=True) as seen:
                run()
        except Unsupported:
            raise
        except Exception as error:
            why_not = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotMeasure(
                f"it asks for a GPU, which is not here ({why_not}); run it where there is one"
            ) from error
        return self._tell(seen, {}, context)

    def _tell(self, seen: Seen, times: Mapping[str, tuple[int, float]], context: MeasureContext) -> dict[str, Scalar]:
        from runner.measure.inspect import compilations
        from runner.measure.inspect.kernel_table import dominant, lines, summary, write

        if not (seen.programs or seen.graphs or seen.unread or times):
            raise CannotMeasure(NOTHING[context.device])
        table = lines(seen, times)
        main = dominant(table)
        reason = why(replace(_facts(main, table, seen, context), arch=self.arch))
        write(table, seen, context.folder)
        notes = [f"not read: {note}" for note in seen.unread]
        if self.arch:
            notes.append("which kernels, and in what tiles, is what this machine chooses")
        if context.case and context.case.impl.name == "compiled":
            notes += compilations()
        (context.folder / SUMMARY).write_text(summary(reason, table, notes), encoding="utf-8")
        figures: dict[str, Scalar] = {"why": reason}
        if main is not None:
            figures["kernel_name"] = main.kernel
        if main is not None and main.code is not None:
            figures |= {
                "load_bits": main.code.load_bits,
                "store_bits": main.code.store_bits,
                "tensor_instructions": main.code.tensor,
                "fp64_instructions": main.code.fp64,
                "kernel_shared_bytes": main.shared_bytes,
            }
        if main is not None and main.registers is not None:
            figures |= {"kernel_registers": main.registers, "kernel_spill_bytes": main.spill_bytes}
        return figures


def _times(call: Call) -> dict[str, tuple[int, float]]:
    """Launches and microseconds of each kernel of a call, by CUPTI; nothing where it sees nothing."""
    from runner.timing.cupti import each_kernel

    return each_kernel(call.run, call.restore)


def _facts(main: Line | None, table: list[Line], seen: Seen, context: MeasureContext) -> Facts:
    """All that is known of the call, from the code and from what earlier measurements have found."""
    figures = context.figures
    fields = context.case.workload.fields if context.case else {}
    code = main.code if main else None
    known = {
        "time_us": figures.get("gpu_us"),
        "pct_of_measured_peak": figures.get("pct_of_measured_peak"),
        "bound": figures.get("bound"),
        "graph_breaks": figures.get("graph_breaks"),
        "kernels": figures.get("n_kernels") or sum(line.launches for line in table) or None,
    }
    bound_by_launch = figures.get("verdict") == "launch_bound"
    return Facts(
        **known,  # type: ignore[arg-type]  # by the columns' own types
        dtype=str(fields.get("dtype", "")),
        tf32=bool(fields.get("tf32")),
        launch_bound=str(figures.get("verdict_reason", "")) if bound_by_launch else "",
        graphs=len(seen.graphs),
        kernel=main.kernel if main and code else None,
        registers=main.registers if main else None,
        registers_allowed=main.registers_allowed if main else REGISTERS,
        spill_bytes=main.spill_bytes if main else None,
        load_bits=code.load_bits if code else None,
        tensor=code.tensor if code else None,
        fp64=code.fp64 if code else None,
        fp64_names=_names(code) if code else "",
        bulk=code.bulk if code else None,
        device=context.device,
    )


def _names(code: Code) -> str:
    """``12 DADD, 3 DMUL``: the instructions in double precision, the most frequent first."""
    return ", ".join(f"{times} {name}" for name, times in code.fp64_names.most_common(3))


def compilations() -> list[str]:
    """A line for each graph break and each recompilation since the case began, with torch's reason for it."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    breaks = [f"graph break, {times}x: {_first(reason)}" for reason, times in counters["graph_break"].items()]
    return breaks + [f"compiled again: {_first(reason)}" for reason in recompile_reasons(get_compilation_metrics())]


def recompile_reasons(metrics: Sequence[Any]) -> list[str]:
    """Return why functions were compiled again, by torch's records of compilations ``metrics``."""
    return [str(reason) for one in metrics if (reason := getattr(one, "recompile_reason", None))]


def _first(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "torch gives no reason"

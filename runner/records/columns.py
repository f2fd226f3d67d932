"""The columns that any row may have: each figure with its unit, its meaning, and how and where it is shown.

A measurement declares its own columns in its own file, as ``COLUMNS``: see ``runner.measure.columns.columns``. The
terminal, the page, W&B, ``bench`` and ``history`` read nothing but these declarations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from .figures import factor, figure, interval, is_number

Form = Literal["", "short", "interval", "share", "factor", "error", "rate"]


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a row. ``better`` says whether a lower or a higher value wins, if either does.

    A column with a ``place`` is in the usual table, under its ``title``; any other is shown on request, under its name.
    """

    unit: str
    meaning: str
    better: Literal["lower", "higher", ""] = ""
    interval: str = ""  # the column that holds half the width of its 95 % interval, in percent
    title: str = ""
    form: Form = ""  # how the usual table writes a value; "": with its unit, in four digits
    place: int = 0  # in the usual table, from 1
    drop: int = 0  # place in the order in which a narrow terminal leaves columns out, from 1; 0: never
    only: str = ""  # the field of a line that must hold for the usual table to show a value
    summary: int = 0  # place in the one line that ``bench`` prints of a function, from 1
    charted: bool = False  # at W&B, over the swept size
    compares: bool = False  # cases of one run with each other: a case alone has no such figure

    def shown(self, title: str, **view: Any) -> Self:
        """Return the column with its title, and the other fields that say where and how it is shown."""
        return replace(self, title=title, **view)

    @property
    def axis(self) -> str:
        """The title of an axis: ``time (us)``, ``TFLOP/s``."""
        if not self.unit or self.unit.endswith(self.title):
            return self.unit or self.title
        return f"{self.title} ({self.unit})"

    def text(self, value: Any) -> str:
        """Return ``value`` with all digits that are shown to people; "" for None."""
        return interval(value) if self.form == "interval" else figure(value, self.unit)

    def brief(self, value: Any) -> str:
        """Return ``value`` as the usual table shows it; "" for None."""
        return FORMS[self.form](value, self) if is_number(value) else figure(value)


FORMS: Mapping[Form, Callable[[Any, Column], str]] = {
    "": lambda value, column: figure(value, column.unit),
    "short": lambda value, column: figure(value, column.unit, digits=3),
    "interval": lambda value, _: interval(value),
    "share": lambda value, _: f"{value:.0f} %",
    "factor": lambda value, _: factor(value),
    # Relative to its tolerance: how far it is below a thousandth does not matter.
    "error": lambda value, _: "<0.001" if 0 < value < 0.001 else figure(value, digits=3),
    "rate": lambda value, column: figure(value, column.unit, digits=3).removesuffix(column.title).rstrip(),
}

TIMES: dict[str, Column] = {
    "gpu_us": Column(
        "us", "GPU time of one call, cold L2 cache by default: trimmed mean of the samples", "lower", "interval_pct"
    ),
    "wall_us": Column(
        "us", "time of one call by the host's clock (CPU cases): trimmed mean of the samples", "lower", "interval_pct"
    ),
    "low_us": Column("us", "lower end of the time's 95 % interval, from ten batches and the instrument's uncertainty"),
    "high_us": Column("us", "upper end of that interval"),
    "median_us": Column("us", "median of the samples"),
    "stat_pct": Column(
        "%", "half the width of the interval from sampling alone, relative to the time", form="interval"
    ),
    "interval_pct": Column(
        "%", "half the width of the time's 95 % interval, instrument included, relative to the time"
    ).shown("±95 %", form="interval", place=3, drop=7),
    "q1_us": Column("us", "first quartile of the samples"),
    "q3_us": Column("us", "third quartile of the samples"),
    "min_us": Column("us", "fastest sample"),
    "samples": Column("", "number of samples").shown("samples", summary=7),
    "calls_per_sample": Column("", "calls in one sample (CPU cases: short calls are timed several at a time)"),
    "gpu_warm_us": Column("us", "GPU time with a warm L2 cache, always on the same buffers", "lower").shown(
        "warm", summary=1
    ),
    "latency_us": Column(
        "us", "one call and a synchronize, in a warm loop, by the host's clock", "lower", "latency_pct"
    ).shown("latency", summary=2),
    "latency_pct": Column("%", "half the width of its 95 % interval, relative to it", form="interval"),
    "host_us": Column(
        "us", "until the call returns to its caller, in that loop; the GPU may still work", "lower", "host_pct"
    ).shown("host", summary=3),
    "host_pct": Column("%", "half the width of its 95 % interval, relative to it", form="interval"),
    "pipelined_us": Column(
        "us", "up to 100 calls back to back and one synchronize, over the number of calls", "lower", "pipelined_pct"
    ).shown("pipelined", place=2, drop=8, only="launch_bound", summary=4),
    "pipelined_pct": Column("%", "half the width of its 95 % interval, relative to it", form="interval"),
    "cupti_us": Column("us", "CUPTI's time from the start of the first kernel to the end of the last"),
    "pct_of_measured_peak": Column(
        "%", "share of the peak of a plain copy or matrix product on this GPU", "higher"
    ).shown("% peak", form="share", place=9, drop=5, summary=5),
    "pct_datasheet": Column("%", "share of the peak in the vendor's data sheet", "higher"),
    "sustained_us": Column("us", "mean time of a call under continuous load, warm; restoring inputs included", "lower"),
    "energy_mj": Column("mJ", "energy of the board for one call under continuous load", "lower"),
    "gap_us": Column("us", "time within cupti_us in which no kernel ran; kernels are launched one by one there"),
    "rank_spread_us": Column("us", "of several ranks: median over samples of the slowest rank's less the fastest's"),
    "warmup_s": Column("s", "time spent in calls before the first sample"),
}

INSTRUMENTS = "graph_timestamps | stream_timestamps | cuda_events | host_clock | perf_counter"

TIMING: dict[str, Column] = {  # what a benchmark knows beside its times
    "instrument": Column("", f"what measured the time: {INSTRUMENTS}"),
    "empty_kernel_us": Column("us", "timer offset: what an empty kernel reads, by CUPTI; 0 without CUPTI"),
    "timer_drift_us": Column("us", "change of an empty kernel's time from the calibration to the end of the samples"),
    "buffer_sets": Column("", "copies of inputs and outputs at different addresses that were used in turn"),
    "instrument_note": Column("", "why the best instrument was not used"),
    "converged": Column("", "no drift, and the interval from sampling is as narrow as asked for"),
    "drift_pct": Column("%", "change of the time from the first batch to the last; 0 where noise explains it"),
    "separate_pct": Column(
        "%", "two times of a call in two processes differ by less in 95 of 100 cases, by verify; empty without it"
    ),
    "verdict": Column("", "ok, or the gravest doubt about the time"),
    "verdict_reason": Column("", "why the verdict is not ok, in one sentence"),
    "intensity": Column("flop/byte", "operations over the minimum traffic"),
    "bound": Column("", "what limits a call of that intensity, by the measured peaks: memory | compute"),
    "fastest_possible_us": Column("us", "no correct call can be faster, by the fastest rates measured on this GPU"),
    "sustained_clock_mhz": Column("MHz", "clock of the multiprocessors under continuous load"),
    "sustained_power_w": Column("W", "board power under continuous load, by its energy counter"),
    "n_kernels": Column("", "kernels, copies and fills of one call"),
    "peak_mem_bytes": Column("byte", "peak memory of one call above its inputs", "lower").shown(
        "peak mem", place=11, drop=3
    ),
    "sm_clock_mhz": Column(
        "MHz", "clock of the multiprocessors in the samples, by counters; tensor cores lower it"
    ).shown("clock", summary=8),
    "unloaded_clock_mhz": Column("MHz", "clock of the multiprocessors with almost no load"),
    "power_w": Column("W", "board power, averaged by the driver over a second"),
    "temperature_c": Column("C", "temperature of the GPU"),
    "cpu_wait_pct": Column("%", "CPU cases: share of the threads' time in which they were ready and had no core"),
    "throttle": Column("", "why the driver reduces the clock"),
}

CASE: dict[str, Column] = {  # how the case went, and on which part of the machine
    "gpu_index": Column("", "index of the GPU in its machine"),
    "gpu_uuid": Column("", "UUID of the GPU"),
    "gpu_shared": Column("", "memory of other processes on the GPU when the grid began"),
    "started_at": Column("", "when the case was given to its worker, in UTC by the worker's machine"),
    "repository": Column("", "git repository of the implementation's file: URL of its remote, else its folder"),
    "commit": Column("", "commit that was checked out there; empty without git"),
    "dirty": Column("", "that file, or one of the same repository that the case used, differed from the commit"),
    "worktree_files": Column("", "working tree's files that a git revision read or failed in, and that differ in it"),
    "attempt": Column("", "how often the case was given to a worker: twice if another case may have caused a failure"),
    "inputs_s": Column("s", "drawing the inputs, or finding those of the previous case"),
    "check_s": Column("s", "computing the float64 reference, once per problem, and comparing with it"),
    "measure_s": Column("s", "all measurements together"),
    "build_s": Column("s", "building the callable: import, wrapping, loading"),
    "import_s": Column("s", "importing the user's files, once in each worker; every case that used them has it"),
    "import_note": Column("", "what importing a user's file did beside defining functions, such as what was undone"),
    "first_call_s": Column("s", "first call, synchronized; includes every compilation that it causes"),
    "compile_s": Column("s", "part of the first call that torch.compile, NVRTC or nvcc spent compiling").shown(
        "compile", form="short", place=12, drop=6
    ),
    "compile_cached": Column("", "compiled code was found on disk or in the process, which shortens compile_s"),
    "precompile_s": Column("s", "first call in the precompiling process; compile_s then has the filled cache"),
    "weights": Column("", "of a module: those of the reference | from the same seed, since names or shapes differ"),
    "config": Column("", "tiles and similar parameters that the implementation chose for this size"),
    "not_measured": Column("", "measurements whose tool is missing, refused or saw nothing, and what to do about it"),
    "graph_breaks": Column("", "number of graph breaks of torch.compile"),
    "recompiles": Column("", "how often torch.compile compiled code again in the first calls", "lower"),
    "recompile_reason": Column("", "why it did so the last time, by torch"),
    "recompile_limit": Column("", "which function has reached the limit of compiled versions, so that it ran eagerly"),
    "first_call_peak_bytes": Column("byte", "GPU: peak memory added by the first call, compiling included", "lower"),
    "threads": Column("", "CPU threads that torch may use"),
    "cpus": Column("", "CPUs that the threads were pinned to during the samples; empty if they were not"),
    "side_effects": Column("", "what the case changed of what all cases of its process use; that process then ended"),
    "wall_s": Column("s", "whole case in the worker, from inputs to result"),
}

CHECKED: dict[str, Column] = {  # what the check found, and what the workload asks for
    "mutates_inputs": Column("", "a call changes its inputs; they are restored before each call, which is not timed"),
    "checked_calls": Column("", "calls at random among the timed ones, or after them, whose outputs were compared"),
    "bitwise_repeatable": Column("", "two calls gave the same bits, in the first 2^24 numbers of each output"),
    "sanitizer_errors": Column("", "errors that compute-sanitizer found, with debug=sanitizer"),
    "correct": Column("", "every output is within tolerance of the float64 reference; empty for impl=copy"),
    "check_note": Column("", "why the check cannot tell right from wrong, or which wrong outputs would pass it"),
    "max_abs_err": Column("", "largest |y - r| over all outputs", "lower"),
    "max_rel_err": Column(
        "", "largest |y - r| / |r| where |r| exceeds the absolute tolerance; between cases of one tolerance", "lower"
    ),
    "err_over_tol": Column("", "largest error as a multiple of its tolerance; at most 1 is correct", "lower").shown(
        "err/tol", form="error", place=10, drop=4
    ),
    "tolerance": Column("", "error allowed at an element whose reference is r").shown("tolerance", summary=6),
    "flops": Column("flop", "floating-point operations that the workload asks for, however they are computed"),
    "bytes_min": Column("byte", "minimum traffic: each input read once, each output written once"),
    "algo_bytes": Column("byte", "of a collective: its size, as nccl-tests counts it"),
    "bus_factor": Column("", "of a collective: part of its size that the busiest link carries, as in nccl-tests"),
}

COLUMNS: dict[str, Column] = {**TIMES, **TIMING, **CASE, **CHECKED}  # beside those that measurements declare
NUMBERS = frozenset(name for name, column in COLUMNS.items() if name in TIMES or column.unit or column.better)

DERIVED: dict[str, Column] = {  # computed from rows by runner.findings.lines
    "implementation": Column(
        "", "name in the table: with the fields in which implementations of one name differ", compares=True
    ),
    "time_us": Column(
        "us",
        "time of one call: gpu_us, on a CPU wall_us; mean over replicas. Tables show paired_time_us, if known",
        "lower",
        "interval_pct",
    ).shown("time", place=1, charted=True),
    "paired_time_us": Column(
        "us",
        "time in the paired rounds, which the table shows: mean of ten batches, on a CPU of their faster halves",
        "lower",
        "paired_interval_pct",
        compares=True,
    ),
    "paired_interval_pct": Column(
        "%", "half the width of its 95 % interval, relative to it", form="interval", compares=True
    ),
    "tflops": Column("TFLOP/s", "the workload's own operations over the time", "higher", "interval_pct").shown(
        "FLOP/s", form="rate", place=6, drop=1, charted=True
    ),
    "gbps": Column("GB/s", "minimum traffic over the time", "higher", "interval_pct").shown(
        "B/s", form="rate", place=7, drop=2, charted=True
    ),
    "bus_gbps": Column("GB/s", "of a collective: algo_gbps times bus_factor", "higher", "interval_pct").shown(
        "bus", place=8
    ),
    "algo_gbps": Column("GB/s", "of a collective: its size over the time", "higher", "interval_pct"),
    "speedup": Column("", "baseline's time over this time, from paired rounds", "higher", compares=True).shown(
        "speed-up", form="factor", place=4, charted=True
    ),
    "speedup_low": Column("", "lower end of the speed-up's 95 % interval", compares=True),
    "speedup_high": Column("", "upper end of that interval", compares=True),
    "vs_baseline": Column(
        "",
        "faster | slower | same (within 1 %) | unclear; empty for wrong results and times of two GPUs",
        compares=True,
    ).shown("vs base", place=5),
    "paired": Column("", "the speed-up comes from paired rounds; if false, from two separate times", compares=True),
    "err_ratio": Column("", "largest |y - r| as a multiple of the baseline's", "lower", compares=True),
    "replicas": Column("", "processes behind the time"),
    "between_pct": Column("%", "standard deviation of the time between processes, relative to the time"),
    "fastest": Column(
        "",
        "yes: every other correct case of the problem is shown to be slower | tied: cannot be told apart from the "
        "fastest | only: no other correct case has a time | unknown: not compared with the fastest, or itself the "
        "fastest but not compared with all, as others have not run | no. "
        "Times that are impossible or contradicted do not count, and neither does impl=copy",
        compares=True,
    ),
}

DEVICE: dict[str, Column] = {  # of the GPU or CPU that a row is from, by the environment of its run; shown on request
    "compute_capability": Column("", "GPU: compute capability, as 9.0"),
    "sms": Column("", "GPU: number of multiprocessors"),
    "max_sm_clock_mhz": Column("MHz", "GPU: highest clock of the multiprocessors"),
    "shared_per_sm_bytes": Column("byte", "GPU: shared memory of a multiprocessor"),
    "registers_per_sm": Column("", "GPU: 32-bit registers of a multiprocessor"),
    "l2_bytes": Column("byte", "L2 cache of the GPU; CPU: that of its first core"),
    "l3_bytes": Column("byte", "CPU: L3 cache that its first core uses"),
    "device_memory_bytes": Column("byte", "memory of the GPU; CPU: memory of the machine"),
    "max_memory_clock_mhz": Column("MHz", "GPU: highest clock of the memory"),
    "memory_bus_bits": Column("bit", "GPU: width of the memory bus"),
    "memory_bus_gbps": Column("GB/s", "GPU: two transfers of that width at each tick of that clock"),
    "cores": Column("", "CPU: cores that the run may use"),
}

SERIES: dict[str, Column] = {
    "batches_us": Column("us", "trimmed mean of each tenth of the samples, in their order"),
    "samples_us": Column("us", "every sample in its order, with measure.benchmark.keep_samples=true"),
}

# What the words in tables and messages mean: for ``show --explain``, the page and docs/columns.md.

STATUSES: dict[str, str] = {  # the end of a case
    "ok": "checked and measured",
    "wrong": "disagrees with the float64 reference",
    "unsupported": "does not exist here; the reason says what would make it exist",
    "build_failed": "could not be compiled or loaded",
    "error": "raised an exception",
    "oom": "out of memory",
    "cuda_error": "the GPU reported a fault; the worker was replaced",
    "timeout": "passed the limit of a phase; the worker was killed",
    "crashed": "the worker died",
    "lost": "in flight when the runner itself was killed",
    "skipped": "never started",
}
VERDICTS: dict[str, str] = {  # on the time of a case, the gravest first
    "wrong": "the result is wrong; timed on request, or wrong only in the timed calls",
    "debug": "a debugging mode was on; timings are not valid",
    "impossible": "faster than this GPU can copy or multiply, or nothing ran at all; never the fastest",
    "contradicted": "CUPTI measured another time, and no uncertainty or clock explains it; never the fastest",
    "fallback": "not what its name says: torch.compile left the graph, or recorded no CUDA graph",
    "contended": "other processes used the CPU, or started or stopped using the GPU: stop them and repeat",
    "power_capped": "a limit of power or temperature reduced the GPU's clock: compare it with times under that limit",
    "not_converged": "the interval is wider than the target, or the time drifts: allow for that, or take more samples",
    "timer_limited": "the call is too short for its instrument: give it more work, or accept the interval",
    "launch_bound": "back to back, launching takes longer than the GPU's work: look at the pipelined time",
    "ok": "no doubt",
}
TERMS: dict[str, str] = {  # other words of tables, notes and conclusions
    "★": "the fastest: every other correct case of the problem is shown to be slower",
    "≈": "tied for the fastest: cannot be told apart",
    "baseline": "the implementation that speed-ups are against: torch, else the first correct one, or baseline=NAME",
    "paired rounds": "implementations sampled in turn, so that what disturbs one disturbs all: best for their ratio",
    "certificate": "what runner verify found out about this machine's timer: how far two times of one call may differ",
    "95 % interval": "contains the true value in 95 of 100 such measurements",
    "replicas": "repetitions of a case in processes of their own: replicas=3",
}

"""The columns a row may carry: each figure with its unit and its meaning, by who gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """One figure a row may carry. ``better`` is the sense in which a smaller or larger value wins."""

    unit: str
    meaning: str
    better: Literal["lower", "higher", ""] = ""


TIMES: dict[str, Column] = {
    "gpu_us": Column(
        "us", "time of one call on the GPU, L2 cold unless told otherwise: mean without the 20 % at each end", "lower"
    ),
    "wall_us": Column("us", "time of one call by the host's clock (CPU cases): same mean", "lower"),
    "low_us": Column("us", "lower end of the 95 % interval of the time: ten consecutive batches, and the instrument's"),
    "high_us": Column("us", "upper end of that interval"),
    "median_us": Column("us", "median of the samples"),
    "stat_pct": Column("%", "half the interval that sampling alone gives, of the time"),
    "interval_pct": Column("%", "half the whole interval, with what the instrument cannot see in one process"),
    "q1_us": Column("us", "first quartile of the samples"),
    "q3_us": Column("us", "third quartile of the samples"),
    "min_us": Column("us", "fastest sample"),
    "samples": Column("", "samples behind these figures"),
    "calls_per_sample": Column("", "calls in one sample (CPU: short calls are timed several at a time)"),
    "gpu_warm_us": Column("us", "the same with the L2 cache as the last call left it, in one place of memory", "lower"),
    "latency_us": Column("us", "what a caller waits for the result by the host's clock: launching included", "lower"),
    "host_us": Column("us", "what a caller waits until it may go on", "lower"),
    "cupti_us": Column("us", "CUPTI's time from the start of the first kernel to the end of the last"),
    "pct_of_measured_peak": Column(
        "%", "time this GPU needs to copy its bytes, or to multiply its operations, of the time", "higher"
    ),
    "pct_datasheet": Column("%", "the same by the vendor's figures", "higher"),
    "sustained_us": Column(
        "us", "mean time of one call under continuous load, the cache warm; putting back inputs is part of it", "lower"
    ),
    "energy_mj": Column("mJ", "energy of the board for one call under that load", "lower"),
    "gap_us": Column("us", "of cupti_us, the time in which no kernel ran: they are launched one by one there"),
    "warmup_s": Column("s", "time spent calling before the first sample"),
}

TIMING: dict[str, Column] = {  # what a benchmark knows beside its times
    "instrument": Column(
        "", "what timed it: graph_timestamps | stream_timestamps | cuda_events | host_clock | perf_counter"
    ),
    "empty_kernel_us": Column(
        "us",
        "the zero of timestamps: what a kernel that does nothing reads, as CUPTI has it; 0 where CUPTI cannot be asked",
    ),
    "timer_drift_us": Column(
        "us", "by how much a kernel that does nothing read more after the samples than when timestamps were calibrated"
    ),
    "buffer_sets": Column("", "buffer_sets of memory in which inputs and outputs lay in turn"),
    "instrument_note": Column("", "why it was not the best one"),
    "converged": Column("", "no drift, and the interval that sampling gives is as narrow as asked"),
    "drift_pct": Column("%", "change of the time from the first batch to the last; 0 where noise explains it"),
    "verdict": Column("", "how far to trust the figures; ok, or the gravest doubt"),
    "verdict_reason": Column("", "why the verdict is not ok, in one sentence"),
    "intensity": Column("flop/byte", "operations over the bytes that must move"),
    "bound": Column("", "what the measured measured_peak says is in short supply at that intensity: memory | compute"),
    "fastest_possible_us": Column(
        "us", "time below which a result is impossible on this GPU, by its own fastest rates"
    ),
    "sustained_clock_mhz": Column("MHz", "clock of the multiprocessors under continuous load"),
    "sustained_power_w": Column("W", "board power under continuous load, by its energy counter"),
    "n_kernels": Column("", "kernels, copies and fills of one call"),
    "sm_clock_mhz": Column("MHz", "multiprocessors' clock in the samples, by their counters; tensor cores lower it"),
    "unloaded_clock_mhz": Column("MHz", "that clock at next to no load"),
    "power_w": Column("W", "board power, averaged by the driver over a second"),
    "temperature_c": Column("C", "temperature of the GPU"),
    "cpu_wait_pct": Column("%", "CPU cases: share of the threads' time in which they were ready and had no core"),
    "throttle": Column("", "why the driver says it holds the clock down"),
}

CASE: dict[str, Column] = {  # how the case went, and on which part of the machine
    "gpu_index": Column("", "which GPU of its machine"),
    "gpu_uuid": Column("", "that GPU's own name"),
    "gpu_shared": Column("", "what other processes held on it when the grid began"),
    "started_at": Column("", "when the case was given to its worker, in UTC by the worker's machine"),
    "attempt": Column(
        "", "times the case was given to a worker: a crash that may be another case's fault has a second"
    ),
    "inputs_s": Column("s", "drawing the inputs, or finding those of the last case"),
    "check_s": Column(
        "s", "the float64 reference, if no earlier case of the problem has made it, and comparing with it"
    ),
    "measure_s": Column("s", "all measurements together"),
    "build_s": Column("s", "building the callable: import, wrapping, loading"),
    "first_call_s": Column("s", "first call, synchronised: includes every compilation it sets off"),
    "compile_s": Column("s", "the part of it that torch.compile, NVRTC or nvcc spent compiling"),
    "compile_cached": Column(
        "", "what it compiles was found built, on disk or in the process, so compile_s is not the first time's"
    ),
    "precompile_off": Column("", "compiling ahead had been switched off, since timings were unsteady beside it"),
    "precompile_s": Column(
        "s", "first call in the process that compiled it ahead; compile_s is then of the cache it filled"
    ),
    "config": Column("", "tiles and the like that the implementation chose for this size, in its own words"),
    "not_measured": Column("", "measurements whose tool is missing, refused or saw nothing, and what to do about it"),
    "graph_breaks": Column("", "buffer_sets where torch.compile left the graph"),
    "threads": Column("", "CPU threads torch may use"),
    "cpus": Column("", "CPUs that the threads were pinned to during the samples; empty if they were not"),
    "wall_s": Column("s", "the whole case in the worker, from inputs to result"),
}

CHECKED: dict[str, Column] = {  # what the check found, and what the workload asks for
    "mutates_inputs": Column("", "a call changes its inputs; they are put back before each, outside the timed part"),
    "bitwise_repeatable": Column("", "two calls gave the same bits, in the first 2^24 numbers of each output"),
    "sanitizer_errors": Column("", "what compute-sanitizer found under debug=sanitizer"),
    "correct": Column("", "every output within tolerance of the float64 reference"),
    "max_abs_err": Column("", "largest |y - r| over all outputs", "lower"),
    "max_rel_err": Column("", "largest |y - r| / |r| where |r| exceeds the absolute tolerance", "lower"),
    "err_over_tol": Column("", "largest error as a multiple of what is allowed there; right is at most 1", "lower"),
    "tolerance": Column("", "error allowed at an element whose reference is r"),
    "flops": Column("", "floating-problem operations the workload asks for, however they are done"),
    "bytes_min": Column("byte", "fewest bytes that must move: each input read once, each output written once"),
}

MEMORY: dict[str, Column] = {  # measure=memory, but for the first two, which every case has
    "first_call_peak_bytes": Column(
        "byte",
        "GPU: most memory the first call held above what was held before: compiling and tuning included",
        "lower",
    ),
    "input_bytes": Column("byte", "measure=memory: what the workload's inputs hold, parameters among them"),
    "peak_forward_bytes": Column(
        "byte", "most that a call holds, above what was held before it, in a forward", "lower"
    ),
    "peak_backward_bytes": Column("byte", "the same in a backward", "lower"),
    "peak_optimizer_bytes": Column("byte", "the same in a step of the optimizer", "lower"),
    "saved_bytes": Column(
        "byte",
        "most that is saved for backward at one time: what the call itself has made, each storage once; no parameters",
        "lower",
    ),
    "allocations": Column("", "allocations of memory in one call", "lower"),
    "allocated_bytes": Column("byte", "all of them together", "lower"),
    "largest_alloc_bytes": Column("byte", "the largest of them", "lower"),
    "peak_mem_bytes": Column("byte", "most memory one call holds above its inputs", "lower"),
}

PROFILE: dict[str, Column] = {  # measure=profile
    "profile_gpu_us": Column("us", "profile: time of one call in which a kernel, copy or fill ran, by torch.profiler"),
    "profile_kernels": Column("", "profile: kernels, copies and fills of one call"),
    "busy_pct": Column("%", "profile: that time, of the time from the first kernel's start to the last one's end"),
    "idle_us": Column("us", "profile: the rest of it, of one call; launches are slower while they are recorded"),
    "longest_gap_us": Column("us", "profile: longest time between two kernels of a call in which none ran; median"),
    "launch_us": Column("us", "profile: time of the host in one call of CUDA that launches something"),
    "queue_us": Column("us", "profile: from the end of that call to the start of what it launched"),
    "top_kernel": Column("", "profile: the kernel that took longest in all, its name shortened"),
    "top_kernel_pct": Column("%", "profile: its share of the time of all kernels"),
    "profile_overhead_pct": Column("%", "profile: what the profiler adds to the time that a caller waits"),
    "profile_note": Column("", "profile: what does not fit, such as fewer kernels than benchmark saw"),
}

NSYS: dict[str, Column] = {  # measure=nsys
    "nsys_gpu_us": Column("us", "time of a call in which the GPU was busy, by nsys, L2 cold: mean as that of gpu_us"),
    "nsys_kernels": Column("", "kernels, copies and fills of one call, by nsys"),
    "nsys_idle_us": Column("us", "time between the first and the last of them in which the GPU did nothing"),
    "nsys_ahead_us": Column("us", "time from the end of a launch to the start of what it launched, on average"),
    "nsys_overhead_pct": Column("%", "what nsys adds to the host's time of a call"),
    "nsys_note": Column("", "what a reader of nsys's figures ought to know; empty if nothing"),
}

# Shares are weighted by time over the kernels of a call; what is of a launch is the longest one's.
NCU: dict[str, Column] = {  # measure=ncu
    "ncu_gpu_us": Column(
        "us", "time of a call's kernels by hardware counters, each run alone, without the gaps between"
    ),
    "ncu_kernels": Column("", "kernels of one call that Nsight Compute has profiled"),
    "ncu_kernel": Column("", "the kernel that takes most of that time"),
    "sm_pct": Column("%", "throughput of the multiprocessors, of their peak", "higher"),
    "dram_pct": Column("%", "throughput of the GPU's memory, of its peak", "higher"),
    "dram_bytes": Column(
        "byte", "what one call has read from the GPU's memory and written to it, by its counters", "lower"
    ),
    "bytes_ratio": Column(
        "", "that over the fewest bytes that must move; below 1: some stayed in the L2 cache", "lower"
    ),
    "occupancy_pct": Column("%", "warps at work on a multiprocessor while it has any, of those it has room for"),
    "occupancy_limiter": Column(
        "", "what leaves no room for more: registers | shared memory | warps | blocks | barriers"
    ),
    "registers": Column("", "registers of a thread"),
    "waves": Column("", "blocks over those that the GPU has room for at once"),
    "tail_pct": Column("%", "share of the buffer_sets in these waves that the last one leaves empty", "lower"),
    "ncu_clock_mhz": Column("MHz", "clock of the multiprocessors under Nsight Compute"),
    "ncu_hint": Column("", "the advice of Nsight Compute's that promises most of the call's time"),
    "ncu_note": Column("", "in what the profile may differ from the call"),
    "ncu_overhead_x": Column(
        "", "what a caller waits under Nsight Compute, which replays each kernel, over latency_us"
    ),
}

INSPECT: dict[str, Column] = {  # measure=inspect
    "why": Column("", "measure=inspect: why it is fast or slow, by what was measured and by the code that ran"),
    "kernel_name": Column("", "the kernel that takes most of a call's time; the figures of its code follow"),
    "kernel_registers": Column("", "registers of a thread"),
    "kernel_spill_bytes": Column("byte", "local memory of a thread: registers spilled, arrays without room", "lower"),
    "kernel_shared_bytes": Column("byte", "shared memory of a block"),
    "load_bits": Column("bit", "widest load from global memory by one instruction of a thread; bulk copies have none"),
    "store_bits": Column("bit", "the same of stores"),
    "tensor_instructions": Column("", "instructions for tensor cores that stand in the code, however often they run"),
    "fp64_instructions": Column("", "instructions in double precision that stand in the code"),
}

GROUPS: dict[str, dict[str, Column]] = {  # by what a reader would look under
    "Times": TIMES,
    "How it was timed": TIMING,
    "The case": CASE,
    "The check": CHECKED,
    "Memory": MEMORY,
    "measure=profile": PROFILE,
    "measure=nsys": NSYS,
    "measure=ncu": NCU,
    "measure=inspect": INSPECT,
}
COLUMNS: dict[str, Column] = {name: column for group in GROUPS.values() for name, column in group.items()}

DERIVED: dict[str, Column] = {  # worked out from rows by runner.report.derive
    "implementation": Column("", "as the table calls it: with the fields in which those of one name differ"),
    "time_us": Column("us", "gpu_us, else wall_us; of several replicas the mean", "lower"),
    "tflops": Column("TFLOP/s", "the workload's own operations over the time", "higher"),
    "gbps": Column("GB/s", "the bytes that must move over the time", "higher"),
    "speedup": Column("", "baseline's time over this one's, from the rounds in which both were sampled", "higher"),
    "speedup_low": Column("", "lower end of its 95 % interval"),
    "speedup_high": Column("", "upper end of it"),
    "vs_baseline": Column(
        "",
        "beside the baseline: faster | slower | same (within 1 %) | unclear; "
        "empty of a wrong result, and for times of two GPUs",
    ),
    "paired": Column("", "the two were sampled in the same rounds; if not, the speed-up is of two separate times"),
    "err_ratio": Column("", "largest |y - r| as a multiple of the baseline's", "lower"),
    "replicas": Column("", "processes behind the time"),
    "between_pct": Column("%", "standard deviation of the time between processes, of the time"),
    "fastest": Column(
        "", "of the right ones of its problem, of those whose time is neither impossible nor contradicted"
    ),
}

SERIES: dict[str, Column] = {
    "batches_us": Column("us", "mean, without the 20 % at each end, of each tenth of the samples, in their order"),
    "samples_us": Column("us", "every sample in its order, where measure.benchmark.keep_samples asks for them"),
}

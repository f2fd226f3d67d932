"""GPU timestamps: kernels of one warp before and after a call that write the GPU's timer, in a CUDA graph or a stream.

A pair of CUDA events in a graph has an offset of 50 to 150 ns that differs between captures, and that replays do not
average out. For timestamps, which a kernel writes from ``%globaltimer``, it is 3 to 16 ns. They also give the clock of
a multiprocessor in each sample.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from . import clock as time
from . import ranks
from .capture import CaptureError, GraphContents, alias, capture_stream, capturing, contents, has_threads, per_gpu
from .gpu_kernels import spin, ticks, timestamp
from .instrument import Instrument
from .nested import returned_tensors
from .preparation import BufferSets
from .procedure import rest

LINE = 16  # int64 values in a cache line of 128 bytes
LINES = 2**17  # 16 MiB to choose from, since the offset of timestamps on neighboring lines does not average out
SEED = 0


class TimestampBuffer:
    """A buffer with ``pairs`` pairs of timestamps on random cache lines."""

    def __init__(self, pairs: int) -> None:
        self._buffer = torch.zeros(LINE * LINES, dtype=torch.int64, device="cuda")
        starts = [LINE * line for line in random.Random(SEED).sample(range(LINES), 2 * pairs)]
        self._first, self._last = starts[:pairs], starts[pairs:]
        self._gather = torch.tensor([[start, start + 1] for start in starts], device="cuda")

    def begin(self, pair: int) -> None:
        """Launch the timestamp before a call."""
        timestamp[(1,)](self._buffer, self._first[pair], num_warps=1)

    def end(self, pair: int) -> None:
        """Launch the timestamp after a call."""
        timestamp[(1,)](self._buffer, self._last[pair], num_warps=1)

    def read(self) -> list[tuple[float, float]]:
        """Return nanoseconds and SM cycles between the timestamps of every pair. Waits for the GPU."""
        values = self._buffer[self._gather].view(2, -1, 2)
        return [(float(ns), float(cycles)) for ns, cycles in (values[1] - values[0]).tolist()]


# All instruments share one buffer. A call starts when the timestamp before it has reached memory, and some cache lines
# are farther away than others: with two buffers, an empty kernel read 1.83 and 1.87 us on an H200. With one buffer, the
# difference is part of the timer offset, which is subtracted.
timestamp_buffer = per_gpu(TimestampBuffer)


@per_gpu
def tick_ns() -> float:
    """Return the step of the GPU's timer in ns: 32 on an H100 or H200, up to 1024 on older GPUs."""
    count = 4096
    times = torch.zeros(count, dtype=torch.int64, device="cuda")
    ticks[(1,)](times, COUNT=count, num_warps=1)
    return smallest_step(times)


def smallest_step(times: Tensor) -> float:
    """Return the smallest step between consecutive ``times``; infinite if all are equal."""
    steps = times.diff()
    return min(steps[steps > 0].tolist(), default=math.inf)


CYCLES_A_SECOND = 2e9  # about the highest clock of any GPU; at a lower clock a spin is longer, which does no harm
LONGEST_S = 0.005  # longest spin, since a call that waits for the GPU waits for the spin too
SLACK = 1.5  # spin length over the measured time of a submission


def spin_cycles(submit_s: float) -> int:
    """Return the spin length, in SM cycles, that hides a submission of ``submit_s`` seconds."""
    return int(min(SLACK * submit_s, LONGEST_S) * CYCLES_A_SECOND)


LONG_US = 100.0
FEW = 5


def captures_needed(us: float, captures: int, buffer_sets: int) -> int:
    """Return the number of captures for a call of ``us``: one for each buffer set if it is long, and at least five.

    Captures of long calls differ by less than 0.1 %, and more captures do not reduce that: on an H200, estimates from
    5 and from 20 captures spread equally above 275 us. At 4.4 us they spread by 28 and 6 ns.
    """
    return captures if us < LONG_US else min(captures, max(FEW, buffer_sets))


class GraphTimestamps(Instrument):
    """Times from replays of CUDA graphs, one at a time, less ``constant_us``. The most precise instrument.

    A function ``constant_us`` is called for each series.

    Each graph holds one sample: preparation, timestamp, call, timestamp. Since captures differ slightly, there are
    ``captures`` graphs, or fewer if the call is long, spread over ``buffer_sets`` and replayed in shuffled order.
    Instruments that share ``buffer_sets`` have their outputs at the same addresses.

    Raises:
        CaptureError: a CUDA graph cannot hold the call, or part of it is outside of the timestamps or not in every
            graph.

    """

    name = "graph_timestamps"

    def __init__(
        self,
        run: Callable[[], object],
        before: Callable[[], object],
        *,
        captures: int,
        constant_us: float | Callable[[], float],
        buffer_sets: BufferSets | None = None,
    ) -> None:
        super().__init__(run, before)
        self.contents: GraphContents | None = None  # None if this torch or driver does not show them
        self._chance = random.Random(captures)
        self.written: list[list[Tensor]] = []  # outputs of each graph
        self._timed: set[int] = set()  # graphs with samples; a slow call does not use all
        self._last = 0  # index of the graph that was replayed last
        self._timestamps = timestamp_buffer(captures)
        self._constant_us = constant_us
        self._buffer_sets = BufferSets() if buffer_sets is None else buffer_sets
        self._stream = capture_stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            eager = self._sample(0)  # a capture does not allow libraries to create handles, nor Triton to compile
            self._stream.synchronize()
            self._graphs = [self._capture(0)]
            if self.kernels == 0 and has_threads():
                with capturing(torch.cuda.CUDAGraph(), ordered=True):
                    run()
            self._replay([0, 0])  # the first replay loads something
            (us,) = ranks.current.slowest([self._timestamps.read()[0][0] / 1e3])
            needed = captures_needed(us, captures, len(self._buffer_sets))
            self._graphs += [self._capture(pair) for pair in range(1, needed)]
        self.round_size = len(self._graphs)
        # Storages that outlive a call, including inputs that are also outputs.
        self._lasting = self._buffer_sets.pointers() | {y.untyped_storage().data_ptr() for y in returned_tensors(eager)}

    def samples(self, count: int) -> list[float]:
        """Return at least ``count`` times in us: whole rounds of all graphs, or ``count`` graphs if fewer."""
        times: list[float] = []
        constant_us = self._constant_us() if callable(self._constant_us) else self._constant_us
        while len(times) < count:
            order = self._chance.sample(range(len(self._graphs)), min(count, len(self._graphs)))
            started = time.perf_counter()
            self._replay(order)
            busy_s = time.perf_counter() - started
            pairs = self._timestamps.read()
            self._timed.update(order)
            self._last = order[-1]
            times += self.slowest([pairs[index][0] / 1e3 - constant_us for index in order])
            self.clocks_mhz += [pairs[index][1] / pairs[index][0] * 1e3 for index in order]
            rest(times[-1], busy_s, partial(self._replay, order[-1:]))
        return times

    def judge_outputs(self) -> str:
        """Judge the outputs of each graph that was timed. Return what is wrong, or ""."""
        for outputs in self.outputs():
            self.checks.judge(partial(list, outputs))
            if self.checks.wrong:
                break
        return self.checks.wrong

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """Yield the outputs of the last graph, then those of each timed graph.

        Since graphs write to the same memory, each graph is replayed once more after its outputs were overwritten.
        """
        self._graphs[self._last].replay()
        torch.cuda.synchronize()
        yield self.written[self._last]
        for index in sorted(self._timed):
            outputs = self.written[index]
            for output in outputs:
                if output.untyped_storage().data_ptr() not in self._lasting:
                    _overwrite(output)
            torch.cuda.synchronize()
            self._graphs[index].replay()
            torch.cuda.synchronize()
            yield outputs

    def _sample(self, pair: int) -> object:
        self._before()
        ranks.current.align()
        self._timestamps.begin(pair)
        result = self._run()
        self._timestamps.end(pair)
        return result

    def _capture(self, pair: int) -> torch.cuda.CUDAGraph:
        """Return a graph. Raises CaptureError on all ranks if one has no graph."""
        can_inspect = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")  # torch 2.8 and later
        graph = torch.cuda.CUDAGraph(keep_graph=True) if can_inspect else torch.cuda.CUDAGraph()
        with ranks.all_or_none(CaptureError):
            with self._buffer_sets.at(pair) as pool, capturing(graph, pool=pool):
                self.written.append([alias(output) for output in returned_tensors(self._sample(pair))])
            if can_inspect:
                self._inspect(graph)
        return graph

    def _inspect(self, graph: torch.cuda.CUDAGraph) -> None:
        """Raise CaptureError unless the graph has the whole call between its timestamps, as the other graphs have."""
        graph_contents = contents(graph.raw_cuda_graph())
        graph.instantiate()
        if graph_contents is None:
            return
        if graph_contents.hosts:
            raise CaptureError(f"it holds {graph_contents.hosts} host functions, for which the GPU would wait")
        if graph_contents.outside:
            raise CaptureError(f"{graph_contents.outside} of its nodes would run outside of the time taken")
        if self.contents is not None and graph_contents.kinds != self.contents.kinds:
            raise CaptureError(f"one capture of it holds {self.contents.work} kernels, another {graph_contents.work}")
        self.contents, self.kernels = graph_contents, graph_contents.work

    def _replay(self, order: Sequence[int]) -> None:
        """Replay graphs one at a time."""
        with torch.cuda.stream(self._stream):
            for index in order:
                self._graphs[index].replay()
                self._stream.synchronize()


def _overwrite(output: Tensor) -> None:
    """Write plausible wrong numbers over ``output``, unless torch does not write to it, as to an expanded tensor."""
    with suppress(RuntimeError):
        if output.is_floating_point() and output.itemsize == 1:  # float8 has no arithmetic
            output.view(torch.uint8).bitwise_not_()
        elif output.is_floating_point() or output.is_complex():
            output.mul_(-0.5).add_(0.25)
        else:
            output.bitwise_not_()


PAIRS = 10  # samples between two reads of the timestamps


class StreamTimestamps(Instrument):
    """Times of calls on the current stream, less ``constant_us``. A spin before each hides the launching."""

    name, round_size = "stream_timestamps", PAIRS

    def __init__(self, run: Callable[[], object], before: Callable[[], object], *, constant_us: float) -> None:
        super().__init__(run, before)
        self._timestamps = timestamp_buffer(PAIRS)
        self._constant_us = constant_us
        self._sample(0, 0.0)  # Triton compiles its kernels
        self._submit_s = max(self._sample(0, 0.0) for _ in range(3))

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times in us."""
        times: list[float] = []
        while len(times) < count:
            size, started = min(PAIRS, count - len(times)), time.perf_counter()
            for pair in range(size):
                self._sample(pair, self._submit_s)
            busy_s = time.perf_counter() - started
            pairs = self._timestamps.read()[:size]
            if self.checks.due():
                self.checks.judge(lambda: returned_tensors(self._kept))
            times += self.slowest([ns / 1e3 - self._constant_us for ns, _ in pairs])
            self.clocks_mhz += [cycles / ns * 1e3 for ns, cycles in pairs]
            rest(times[-1], busy_s, partial(self._sample, 0, self._submit_s))
        self._kept = None
        return times

    def _sample(self, pair: int, submit_s: float) -> float:
        """Make one call behind a spin that hides ``submit_s`` seconds; return the seconds of the submission."""
        self._kept = None  # its memory serves this call
        self._before()
        spin[(1,)](spin_cycles(submit_s), num_warps=1)
        started = time.perf_counter()
        ranks.current.align()  # after the spin, whose length differs between ranks
        self._timestamps.begin(pair)
        self._kept = self._run()
        self._timestamps.end(pair)
        submitted_s = time.perf_counter() - started
        torch.cuda.synchronize()
        return submitted_s

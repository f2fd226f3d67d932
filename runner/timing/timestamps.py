"""The instrument of choice on a GPU: timestamps around one call in a CUDA graph, replayed one at a time.

A graph holds one sample: {reset if the call needs one, reading flush, timestamp, call, timestamp}. There are several
captures, since no two are quite alike, in several buffer_sets of memory, and they are replayed in shuffled order. The
timestamps also give the clock of the multiprocessors in each sample.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from runner.timing.call import Place, tensors
from runner.timing.capture import CaptureError, Contents, capture_stream, capturing, contents
from runner.timing.gpu_kernels import spin
from runner.timing.preparation import BufferSets
from runner.timing.procedure import rest
from runner.timing.timestamp_buffer import slots, spin_cycles

# From here on captures differ by less than 0.1 % and no more of it comes off with more of them: on an H200, estimates
# by 5 and by 20 captures spread alike from 275 us on, where at 4.4 us it is 28 ns and 6. But each place has one.
LONG_US = 100.0
FEW = 5


class GraphTimestamps:
    """Samples of ``call`` from ``captures`` graphs, less ``constant_us``; ``before`` each comes its preparation.

    Of a long call there is a graph for each of ``buffer_sets``, and five at least: more of them would tell no more.

    Instruments that share ``buffer_sets`` have outputs at the same addresses, since each gives back its own when it
    has captured the call.

    Raises:
        CaptureError: ``call`` synchronises, copies to the host, or does whatever else a graph cannot hold or be
            trusted with: part of it is not between the timestamps, or not in every graph.

    """

    name = "graph_timestamps"

    def __init__(
        self,
        call: Callable[[], object],
        before: Callable[[], object],
        *,
        captures: int,
        constant_us: float,
        buffer_sets: BufferSets | None = None,
    ) -> None:
        self.clocks_mhz: list[float] = []  # of the multiprocessor that timestamps, one a sample
        self.contents: Contents | None = None  # None: this torch or driver does not show them
        self._chance = random.Random(captures)
        self._call, self._before = call, before
        self._outputs: list[list[Place]] = []  # of each graph
        self._timed: set[int] = set()  # graphs of which there are samples: of a long call, not all
        self._last = 0  # the one that was replayed last
        self._slots = slots(captures)
        self._constant_us = constant_us
        self._places = BufferSets() if buffer_sets is None else buffer_sets
        self._stream = capture_stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            eager = self._sample(0)  # libraries make their handles, and Triton its kernels, outside of a capture
            self._stream.synchronize()
            self._graphs = [self._capture(0)]
            self._graphs += [self._capture(pair) for pair in range(1, self._worthwhile(captures))]
        # Outputs that outlive their call, among them those that are inputs.
        self._lasting = {Place.of(output).data_ptr for output in tensors(eager)} | self._places.pointers()

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call or a few more, in microseconds, as they were taken.

        Whole rounds of captures; or some of them, drawn anew, if fewer samples are wanted than there are captures.
        """
        times: list[float] = []
        while len(times) < count:
            order = self._chance.sample(range(len(self._graphs)), min(count, len(self._graphs)))
            started = time.perf_counter()
            self._replay(order)
            busy_s = time.perf_counter() - started
            pairs = self._slots.read()
            self._timed.update(order)
            self._last = order[-1]
            times += [pairs[index][0] / 1e3 - self._constant_us for index in order]
            self.clocks_mhz += [cycles / ns * 1e3 for ns, cycles in map(pairs.__getitem__, order)]
            rest(times[-1], busy_s, partial(self._replay, order[-1:]))
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What the graph timed last gives; and of each one timed, its outputs spoilt before, what differs from that.

        It is replayed once more: other graphs, such as those of the warm time, have written to the same memory since.
        """
        self._graphs[self._last].replay()
        torch.cuda.synchronize()
        timed = [place.tensor() for place in self._outputs[self._last]]
        right = [output.clone() for output in timed]
        yield timed
        for index in sorted(self._timed):
            graph, buffer_sets = self._graphs[index], self._outputs[index]
            outputs = [place.tensor() for place in buffer_sets]
            for output, place in zip(outputs, buffer_sets, strict=True):
                if place.data_ptr not in self._lasting and output.is_floating_point():
                    with suppress(RuntimeError):  # expanded: torch does not write to what overlaps
                        output.mul_(-0.5).add_(0.25)  # plausible numbers, next to none of them right
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            if not all(torch.equal(now, then) for now, then in zip(outputs, right, strict=True)):
                yield outputs

    def _worthwhile(self, captures: int) -> int:
        """How many of ``captures``, of which there is one, by how long the call takes in it."""
        self._replay([0, 0])  # the first of all loads something
        return captures if self._slots.read()[0][0] < 1e3 * LONG_US else min(captures, max(FEW, len(self._places)))

    def _sample(self, pair: int) -> object:
        self._before()
        self._slots.begin(pair)
        result = self._call()
        self._slots.end(pair)
        return result

    def _capture(self, pair: int) -> torch.cuda.CUDAGraph:
        graph = _keeping_graph()
        with self._places.at(pair) as pool, capturing(graph, pool=pool):
            self._outputs.append([Place.of(output) for output in tensors(self._sample(pair))])
        self._look(graph)
        return graph

    def _look(self, graph: torch.cuda.CUDAGraph) -> None:
        """Raises CaptureError unless all of the call is between the timestamps, and the same as in the other graphs."""
        if not hasattr(graph, "raw_cuda_graph"):
            return
        found = contents(graph.raw_cuda_graph())
        graph.instantiate()
        if found is None:
            return
        if found.hosts:
            raise CaptureError(f"it holds {found.hosts} host functions, for which the GPU would wait")
        if found.outside:
            raise CaptureError(f"{found.outside} of its nodes would run outside of the time taken")
        if self.contents is not None and found.kinds != self.contents.kinds:
            raise CaptureError(f"one capture of it holds {self.contents.work} kernels, another {found.work}")
        self.contents = found

    def _replay(self, order: Sequence[int]) -> None:
        """One at a time."""
        with torch.cuda.stream(self._stream):
            for index in order:
                self._graphs[index].replay()
                self._stream.synchronize()


def _keeping_graph() -> torch.cuda.CUDAGraph:
    """A graph whose nodes can still be looked at when it has been captured: torch 2.8 and later."""
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        return torch.cuda.CUDAGraph()
    return torch.cuda.CUDAGraph(keep_graph=True)


PAIRS = 10  # samples between two reads of the timestamps


class StreamTimestamps:
    """Samples of ``call`` on the current stream, less ``constant_us``; ``before`` each comes its preparation."""

    name = "stream_timestamps"

    def __init__(self, call: Callable[[], object], before: Callable[[], object], *, constant_us: float) -> None:
        self.clocks_mhz: list[float] = []  # of the multiprocessor that timestamps, one a sample
        self._call, self._before = call, before
        self._slots = slots(PAIRS)
        self._constant_us = constant_us
        self._sample(0, 0.0)  # Triton compiles its kernels
        self._submit_s = max(self._sample(0, 0.0) for _ in range(3))

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call or a few more, in microseconds, in the order they were taken."""
        times: list[float] = []
        while len(times) < count:
            started = time.perf_counter()
            for pair in range(PAIRS):
                self._sample(pair, self._submit_s)
            busy_s = time.perf_counter() - started
            pairs = self._slots.read()
            times += [ns / 1e3 - self._constant_us for ns, _ in pairs]
            self.clocks_mhz += [cycles / ns * 1e3 for ns, cycles in pairs]
            rest(times[-1], busy_s, partial(self._sample, 0, self._submit_s))
        return times

    def outputs(self) -> Iterator[Sequence[Tensor]]:
        """What one more call gives, made as the timed ones were."""
        self._before()
        yield tensors(self._call())

    def _sample(self, pair: int, submit_s: float) -> float:
        """Seconds the host took to submit it, which was expected to take ``submit_s``."""
        self._before()
        spin[(1,)](spin_cycles(submit_s), num_warps=1)
        started = time.perf_counter()
        self._slots.begin(pair)
        self._call()
        self._slots.end(pair)
        submitted_s = time.perf_counter() - started
        torch.cuda.synchronize()
        return submitted_s

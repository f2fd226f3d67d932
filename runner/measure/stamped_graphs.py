"""The instrument of choice on a GPU: stamps around one call in a CUDA graph, replayed one at a time.

A graph holds one sample: {reset if the call needs one, reading flush, stamp, call, stamp}. There are several
captures, since no two are quite alike, and they are replayed in shuffled order. The stamps also give the clock of
the multiprocessors in each sample.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from runner.measure.flush import reading_flush
from runner.measure.slots import slots

LONG_US = 100.0  # from here on the GPU may meet its power limit, so it rests as long as it has worked


class CaptureError(Exception):
    """The call cannot be captured in a CUDA graph; the message is the reason, in one line."""


class StampedGraphs:
    """Samples of ``call`` from ``captures`` graphs, less ``constant_us``.

    Raises:
        CaptureError: ``call`` synchronises, copies to the host, or does whatever else a graph cannot hold.

    """

    name = "stamped_graphs"

    def __init__(
        self,
        call: Callable[[], object],
        reset: Callable[[], None] | None = None,
        *,
        cold_l2: bool,
        captures: int,
        constant_us: float,
    ) -> None:
        self.clocks_mhz: list[float] = []  # of the multiprocessor that stamps, one a sample
        self._chance = random.Random(captures)
        self._reset = reset or (lambda: None)
        self._flush = reading_flush() if cold_l2 else lambda: None
        self._slots = slots(captures)
        self._constant_us = constant_us
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            self._sample(call, 0)  # libraries make their handles, and Triton its kernels, outside of a capture
            self._stream.synchronize()
            self._graphs = [self._capture(call, pair, pool) for pair in range(captures)]

    def samples(self, count: int) -> list[float]:
        """``count`` times of one call or a few more, in microseconds, as they were taken: whole rounds of captures."""
        times: list[float] = []
        while len(times) < count:
            order = self._chance.sample(range(len(self._graphs)), len(self._graphs))
            started = time.perf_counter()
            with torch.cuda.stream(self._stream):
                for index in order:
                    self._graphs[index].replay()
                    self._stream.synchronize()
            busy_s = time.perf_counter() - started
            pairs = self._slots.read()
            times += [pairs[index][0] / 1e3 - self._constant_us for index in order]
            self.clocks_mhz += [cycles / ns * 1e3 for ns, cycles in pairs]
            if times[-1] > LONG_US:
                self._rest(busy_s)
        return times

    def _sample(self, call: Callable[[], object], pair: int) -> object:
        self._reset()
        self._flush()
        self._slots.begin(pair)
        result = call()
        self._slots.end(pair)
        return result

    def _capture(self, call: Callable[[], object], pair: int, pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                self._sample(call, pair)
        except Exception as error:
            _forget_capture()
            raise CaptureError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
        return graph

    def _rest(self, seconds: float) -> None:
        """Half of the time at most under load; and the first sample after a pause is slow, so let it be a flush."""
        time.sleep(seconds)
        with torch.cuda.stream(self._stream):
            self._flush()
            self._stream.synchronize()


def _forget_capture() -> None:
    """A capture that failed leaves torch's random generator waiting for its end; give it a state that does not."""
    torch.cuda.synchronize()
    for index, generator in enumerate(torch.cuda.default_generators):
        fresh = torch.Generator(device=f"cuda:{index}").manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())

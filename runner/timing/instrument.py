"""Base class of the instruments that time a call."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import ranks
from .nested import returned_tensors
from .spot_checks import SpotChecks

# Timer offsets and clocks by name, each measured once for all processes of a run on this GPU.
calibrations: dict[str, float] = {}


class Instrument:
    """Base class of all instruments, which time single calls of ``run``, each after an untimed call of ``before``."""

    name: str  # as in the column ``instrument``
    kernels: int | None = None  # and copies and fills of a call in its CUDA graph; None if unknown or without a graph
    round_size = 1  # samples that the instrument takes at a time
    checks = SpotChecks()  # by default no output is judged
    _kept: object = None  # result of a timed call, until it is judged
    early_us: Sequence[float] = ()  # samples from before the warm-up, if the call is so slow that all samples count

    def __init__(self, run: Callable[[], object], before: Callable[[], object]) -> None:
        self.spreads_us: list[float] = []  # for each sample, the time of the slowest rank less that of the fastest
        self.clocks_mhz: list[float] = []  # clock of a multiprocessor in each sample; empty if not measured
        self._run, self._before = run, before

    def samples(self, count: int) -> list[float]:
        """Return ``count`` times of one call or a few more, in us, in order."""
        raise NotImplementedError

    def slowest(self, times_us: Sequence[float]) -> list[float]:
        """Return the times of the slowest ranks, given those of this rank: a sample is matched across ranks."""
        if ranks.current.count == 1:
            return list(times_us)
        by_sample = [*zip(*ranks.current.gather([*times_us], "samples"), strict=True)]
        self.spreads_us += [max(each) - min(each) for each in by_sample]
        return [max(each) for each in by_sample]

    def judge_outputs(self) -> str:
        """Judge further outputs, of calls made in the same way. Return what is wrong with any output, or ""."""
        self.checks.judge(self._further_outputs)
        while self.checks.affordable():
            self.checks.judge(self._further_outputs)
        return self.checks.wrong

    def _further_outputs(self) -> Sequence[Tensor]:
        """Return the outputs of another call."""
        self._before()
        result = returned_tensors(self._run())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the call may leave work on another stream
        return result

"""Two calls compared as a sweep compares its implementations, many times over: how often that is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from runner.experiment.case import Scalar
from runner.measure.benchmark import Benchmark
from runner.models.workload import Call
from runner.timing.floors import pair_floors, shared_us
from runner.timing.pairs import Ratio, paired
from runner.timing.verify import Finding

SURE_US = 8.0  # from here on "same" can be said: below, what an instrument cannot see is too large a share
SURE_SHARE = 0.9  # of pairs that must be called so


@dataclass(frozen=True)
class Compared:
    """One pair of calls."""

    ratio: Ratio  # of the first to the second
    us: float  # of the second


def compared(
    settings: Benchmark, device: str, first: Call, second: Call, columns: Mapping[str, Scalar] | None = None
) -> Compared:
    """``first`` against ``second``. ``columns`` name the instrument of both, on a GPU.

    Raises:
        RuntimeError: they cannot be sampled side by side.

    """
    both = settings.compare([(first, columns or {}), (second, columns or {})], device)
    if both is None:
        raise RuntimeError("there is no time for rounds in which calls are sampled in turn")
    (name, ours), (other, theirs) = both
    return Compared(paired(ours, theirs, pair_floors(name, other), shared_us(name, other)), fmean(theirs))


def alike(name: str, pairs: Sequence[Compared], most: int) -> Finding:
    """Of calls that are the same, at most ``most`` are called faster or slower."""
    told = sum(pair.ratio.word in ("faster", "slower") for pair in pairs)
    widest = 100 * max(abs(pair.ratio.log) for pair in pairs)
    found = f"{told} of {len(pairs)} called different, the farthest {widest:.2f} % apart"
    return Finding(f"{name}: different", found, f"at most {most}", told <= most)


def sure(name: str, pairs: Sequence[Compared]) -> Finding:
    """Of calls that are the same and long enough, most are called so."""
    long = [pair for pair in pairs if pair.us >= SURE_US]
    same = sum(pair.ratio.word == "same" for pair in long)
    found = f'{same} of the {len(long)} from {SURE_US:g} us up called "same"'
    return Finding(f"{name}: same", found, f"at least {100 * SURE_SHARE:.0f} %", same >= SURE_SHARE * len(long))


def slower(name: str, pairs: Sequence[Compared], share: float, least: int) -> Finding:
    """Of first calls that are longer by ``share``, at least ``least`` are called slower."""
    told = sum(pair.ratio.word == "slower" for pair in pairs)
    read = 100 * fmean(pair.ratio.log for pair in pairs)
    found = f"found in {told} of {len(pairs)}, read as {read:+.2f} %"
    return Finding(f"{name}, {100 * share:g} % longer", found, f"at least {least}", told >= least)

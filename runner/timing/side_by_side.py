"""Calls of one point sampled in turn, so that what the machine does meanwhile happens to all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from runner.timing.procedure import Instrument
from runner.timing.statistics import BATCHES, consecutive, trimmed_mean

EACH = 10  # samples of each in a round, or one if they are slow
LESS = 4  # times less, at most, that a sample among ten may cost than a single one: then ten are tried
SEED = 0


def side_by_side(
    instruments: Sequence[Instrument], rounds: int, longest_s: float
) -> list[tuple[str, list[float]]] | None:
    """Of each instrument its name and ten batch means in microseconds, the n-th of all taken at the same time.

    There are ``rounds`` rounds, or fewer if they would take longer than ``longest_s`` an instrument; in each, all
    instruments take ten samples, or one, in shuffled order. None if there is no time for a round a batch.
    """
    chance, allowed_s = random.Random(SEED), longest_s * len(instruments)
    if _seconds(instruments, 1, chance) > allowed_s:  # the first may load something, but not for so long
        return None
    single_s = _seconds(instruments, 1, chance)
    if single_s * BATCHES > allowed_s:
        return None
    for each in (EACH, 1) if single_s * BATCHES * EACH <= LESS * allowed_s else (1,):
        affordable = min(rounds, int(allowed_s / _seconds(instruments, each, chance)))
        if affordable >= BATCHES:
            break
    else:
        return None
    batches: list[list[float]] = [[] for _ in instruments]
    for part in consecutive(range(affordable), BATCHES):
        taken = [_round(instruments, each, chance) for _ in part]
        for index, means in enumerate(batches):
            means.append(trimmed_mean([time_us for one in taken for time_us in one[index]]))
    return [(instrument.name, means) for instrument, means in zip(instruments, batches, strict=True)]


def _seconds(instruments: Sequence[Instrument], each: int, chance: random.Random) -> float:
    """What a round takes."""
    started = time.perf_counter()
    _round(instruments, each, chance)
    return time.perf_counter() - started


def _round(instruments: Sequence[Instrument], each: int, chance: random.Random) -> list[list[float]]:
    """``each`` samples of each, by its place in ``instruments``."""
    order = chance.sample(range(len(instruments)), len(instruments))
    taken = {index: instruments[index].samples(each) for index in order}
    return [taken[index] for index in range(len(instruments))]

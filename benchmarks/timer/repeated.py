"""Calls of one operation on one input, once or several times in a row: equal ones, and slower ones by a known share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runner.timing.call import Call
from runner.timing.statistics import Ratio, pair_floors, paired, shared_us
from runner.timing.timer import Timer

INSTRUMENTS = {"cpu": "perf_counter", "cuda": "graph_timestamps"}


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gelu": torch.nn.functional.gelu,
    "softmax": _softmax,
    "matmul": torch.mm,
}


def repeated(call: str, x: tuple[torch.Tensor, ...], times: int = 1) -> Call:
    """Return a new function that computes ``call`` of ``x``, ``times`` in a row."""
    function = FUNCTIONS[call.split()[0]]
    if times == 1:
        return Call(lambda: (function(*x),), inputs=x)

    def run() -> tuple[torch.Tensor, ...]:
        for _ in range(times):
            y = function(*x)
        return (y,)

    return Call(run, inputs=x)


def tensors(call: str, device: str) -> tuple[torch.Tensor, ...]:
    """Return new inputs of ``call``, such as "gelu 2^10", "softmax 64 x 32" or "matmul 128"."""
    kind, _, size = call.partition(" ")
    if kind == "gelu":
        return (torch.randn(2 ** int(size.removeprefix("2^")), device=device),)
    rows, _, cols = size.partition(" x ")
    count = 2 if kind == "matmul" else 1
    return tuple(torch.randn(int(rows), int(cols or rows), device=device) for _ in range(count))


def ratio_of(first: Call, second: Call, settings: Timer, device: str, instrument: str = "") -> Ratio | None:
    """Return the time of ``first`` over that of ``second`` from paired rounds; None if the calls are too slow.

    ``instrument``: which takes the samples on a GPU; "": the best one.
    """
    name = instrument or INSTRUMENTS[device]
    both = settings.compare([(each, {"instrument": name}) for each in (first, second)], device)
    if both is None:
        return None
    (name, first_us, *_), (other, second_us, *_) = both
    return paired(first_us, second_us, pair_floors(name, other), shared_us(name, other))

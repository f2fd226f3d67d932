"""The checks on a CPU: loops whose length is known, and pairs of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from runner.timing import Call, TimingSettings
from runner.timing.procedure import CONTENDED_PCT
from runner.timing.verify import Check, Finding, alike, compared, slower

GELU: Any = torch._C._nn.gelu  # takes a buffer for its output, as torch.nn.functional.gelu does not

LOOPS_US = (20.0, 200.0, 2000.0)
NEAR_US, NEAR_SHARE = 1.0, 0.02  # of the fastest sample: the operating system makes the others longer
PAIRS, MOST, LEAST = 10, 1, 9  # that may be called different, and that must be
SMALL = 2**16  # elements, as many as torch's threads still share
SLOWED_US, SLOWED_SHARE = 200.0, 0.05


def loops(settings: TimingSettings) -> list[Finding]:
    """Loops that end by the same clock."""
    return [known_length(us, settings.time(busy(us), "cpu")) for us in LOOPS_US]


def known_length(us: float, row: Mapping[str, Any]) -> Finding:
    """The fastest sample of a loop that lasts ``us``."""
    passed = abs(row["min_us"] - us) <= NEAR_US + NEAR_SHARE * us
    found = f"{row['min_us']:.2f} us at best, {row['wall_us']:.2f} us on average"
    finding = Finding(f"loop of {us:g} us", found, f"best within {NEAR_US:g} us + {100 * NEAR_SHARE:g} %", passed)
    return crowded(finding, [row])


def same(settings: TimingSettings) -> list[Finding]:
    """The same call against itself."""
    calls = [_gelu(SMALL) for _ in range(PAIRS)]

    def pairs() -> Finding:
        return alike(f"A/A, gelu of {SMALL} elements", [compared(settings, "cpu", call, call) for call in calls], MOST)

    return [_between(settings, calls[0], pairs)]


def slowed(settings: TimingSettings) -> list[Finding]:
    """A loop against one that is longer."""
    short, long = busy(SLOWED_US), busy(SLOWED_US * (1 + SLOWED_SHARE))

    def pairs() -> Finding:
        made = [compared(settings, "cpu", long, short) for _ in range(PAIRS)]
        return slower(f"loop of {SLOWED_US:g} us", made, SLOWED_SHARE, LEAST)

    return [_between(settings, short, pairs)]


def crowded(finding: Finding, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """The same, saying so if other processes were busy, by ``rows`` of that time: they may be why it failed."""
    waited = max(row.get("cpu_wait_pct") or 0.0 for row in rows)
    if waited <= CONTENDED_PCT:
        return finding
    neighbour = f"its threads waited {waited:.0f} % of the time for other processes"
    return replace(finding, found=f"{finding.found}; {neighbour}")


def busy(us: float) -> Call:
    """A loop that ends ``us`` after it began, or as soon as it is looked at after that."""
    length_ns = round(1e3 * us)

    def loop() -> tuple[Tensor, ...]:
        end = time.perf_counter_ns() + length_ns
        while time.perf_counter_ns() < end:
            pass
        return ()

    return Call(loop)


def _between(settings: TimingSettings, call: Call, check: Callable[[], Finding]) -> Finding:
    """What ``check`` finds, and whether ``call`` was crowded just before or after it."""
    before = settings.time(call, "cpu")
    finding = check()
    return crowded(finding, [before, settings.time(call, "cpu")])


def _gelu(count: int) -> Call:
    x = torch.randn(count)
    y = torch.empty_like(x)
    return Call(lambda: (GELU(x, approximate="tanh", out=y),))


CHECKS: Mapping[str, Check] = {
    "loops of known length": loops,
    "equal calls": same,
    "injected slowdown": slowed,
}

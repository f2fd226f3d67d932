"""The checks on a CPU: loops of known length, equal calls, and a slowdown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from runner.timing import Call, TimingSettings
from runner.timing.procedure import CONTENDED_PCT
from runner.timing.verify import Check, Finding, alike, compared, gelu, slower

LOOPS_US = (20.0, 200.0, 2000.0)
NEAR_US, NEAR_SHARE = 1.0, 0.02  # error allowed for the fastest sample: the operating system delays the others
PAIRS, MOST, LEAST = 10, 1, 9  # number of pairs, those that may be called different, and those that must be
SMALL = 2**16  # elements, enough for torch to use several threads
SLOWED_US, SLOWED_SHARE = 200.0, 0.05


def loops(settings: TimingSettings) -> list[Finding]:
    """Time loops that end by the same clock."""
    return [known_length(us, settings.time(busy(us), "cpu")) for us in LOOPS_US]


def known_length(us: float, row: Mapping[str, Any]) -> Finding:
    """Check the fastest sample in ``row``, of a loop that lasts ``us``."""
    passed = abs(row["min_us"] - us) <= NEAR_US + NEAR_SHARE * us
    found = f"{row['min_us']:.2f} us at best, {row['wall_us']:.2f} us on average"
    finding = Finding(f"loop of {us:g} us", found, f"best within {NEAR_US:g} us + {100 * NEAR_SHARE:g} %", passed)
    return crowded(finding, [row])


def same(settings: TimingSettings) -> list[Finding]:
    """Compare calls with themselves."""
    calls = [gelu(SMALL, "cpu") for _ in range(PAIRS)]

    def check() -> Finding:
        return alike(f"A/A, gelu of {SMALL} elements", [compared(settings, "cpu", call, call) for call in calls], MOST)

    return [_between(settings, calls[0], check)]


def slowed(settings: TimingSettings) -> list[Finding]:
    """Compare a loop with a longer one."""
    short, long = busy(SLOWED_US), busy(SLOWED_US * (1 + SLOWED_SHARE))

    def check() -> Finding:
        pairs = [compared(settings, "cpu", long, short) for _ in range(PAIRS)]
        return slower(f"loop of {SLOWED_US:g} us", pairs, SLOWED_SHARE, LEAST)

    return [_between(settings, short, check)]


def crowded(finding: Finding, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Add to ``finding`` that other processes were busy, if ``rows`` of the same time show it."""
    waited = max(row.get("cpu_wait_pct") or 0.0 for row in rows)
    if waited <= CONTENDED_PCT:
        return finding
    return replace(finding, found=f"{finding.found}; its threads waited {waited:.0f} % of the time for other processes")


def busy(us: float) -> Call:
    """Return a loop that ends ``us`` after its start, or at the next reading of the clock."""
    length_ns = round(1e3 * us)

    def loop() -> tuple[Tensor, ...]:
        end = time.perf_counter_ns() + length_ns
        while time.perf_counter_ns() < end:
            pass
        return ()

    return Call(loop)


def _between(settings: TimingSettings, call: Call, check: Callable[[], Finding]) -> Finding:
    """Return the finding of ``check``, and whether other processes were busy just before or after it."""
    before = settings.time(call, "cpu")
    finding = check()
    return crowded(finding, [before, settings.time(call, "cpu")])


CHECKS: Mapping[str, Check] = {
    "loops of known length": loops,
    "equal calls": same,
    "injected slowdown": slowed,
}

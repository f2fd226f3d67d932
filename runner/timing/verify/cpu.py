"""The checks on a CPU: loops of known length, equal calls, slowdowns and separate times."""

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..call import Call
from .checks import Check, SelfTest, Settings, alike, compared, earlier, gelu, in_processes, separate, slower

LOOPS_US = (20.0, 200.0, 2000.0)
NEAR_US, NEAR_SHARE = 1.0, 0.02  # error allowed for the fastest sample: the operating system delays the others
PAIRS, MOST, LEAST = 10, 1, 9  # number of pairs, those that may be called different, and that must be
SMALL, LARGE = 2**16, 2**19  # elements, enough for torch to use several threads
APART_PCT = 15.0  # most that two separate times may differ
SLOWED_US, SLOWED_SHARE = 200.0, 0.05


def loops(settings: Settings) -> list[Check]:
    """Time loops that end by the same clock."""
    return [known_loop(us, settings.time(busy(us), "cpu")) for us in LOOPS_US]


def known_loop(us: float, row: Mapping[str, Any]) -> Check:
    """Check the fastest sample in ``row``, of a loop that lasts ``us``."""
    passed = abs(row["min_us"] - us) <= NEAR_US + NEAR_SHARE * us
    text = f"{row['min_us']:.2f} us at best, {row['wall_us']:.2f} us on average"
    return Check(f"loop of {us:g} us", text, f"best within {NEAR_US:g} us + {100 * NEAR_SHARE:g} %", passed)


def same(settings: Settings) -> list[Check]:
    """Compare calls with themselves."""
    calls = [gelu(SMALL, "cpu") for _ in range(PAIRS)]
    return [alike(f"A/A, gelu of {SMALL} elements", [compared(settings, "cpu", call, call) for call in calls], MOST)]


def series(settings: Settings) -> list[Check]:
    """Time a short and a longer call in fresh processes."""
    processes = in_processes(settings, "cpu", (SMALL, LARGE))
    return [separate(f"gelu of {SMALL} and {LARGE} elements: separate times", processes, APART_PCT, earlier("cpu"))]


def slowed(settings: Settings) -> list[Check]:
    """Compare a loop with a longer one."""
    short, long = busy(SLOWED_US), busy(SLOWED_US * (1 + SLOWED_SHARE))
    pairs = [compared(settings, "cpu", long, short) for _ in range(PAIRS)]
    return [slower(f"loop of {SLOWED_US:g} us", pairs, SLOWED_SHARE, LEAST)]


def busy(us: float) -> Call:
    """Return a loop that ends ``us`` after its start, or at the next reading of the clock."""
    length_ns = round(1e3 * us)

    def loop() -> tuple[Tensor, ...]:
        end = time.perf_counter_ns() + length_ns
        while time.perf_counter_ns() < end:
            pass
        return ()

    return Call(loop)


CHECKS: Mapping[str, SelfTest] = {
    "loops of known length": loops,
    "equal calls": same,
    "injected slowdown": slowed,
    "separate times": series,
}

"""The verdict on a time: the gravest doubt about it, or "ok"."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..records.case import Scalar
from ..records.figures import figure, interval

SLOWED = 0.98  # share of the unloaded clock; below it, a limit of power or temperature may have acted
DISAGREE_US, DISAGREE_SHARE = 1.0, 0.05  # allowed between the instrument and CUPTI, for a call of a single kernel
MOST_SLOWED_SHARE = 0.1  # limit of what a lower clock than in CUPTI's calls allows in addition
# Allowed if CUPTI's time is longer, since recording makes a kernel longer: on an H100 up to 9.9 % for one of blocks of
# 1024 threads, whose time by CUDA events rises by as much while CUPTI records.
WATCHED_SHARE = 0.15
CONTENDED_PCT = 2.0  # percent of the time without a core: 0.3 on a quiet machine, 37 with a busy process on two cores
MOST_DRIFT_US = 0.2  # half of the drift that another process's context was seen to cause
LAUNCH_SHARE, LAUNCH_US = 1.2, 1.0  # a call is launch-bound if calls back to back take longer than its GPU time by both

DRIFTS = "the time drifts"  # how the reason of a time begins that has not converged for it

# The gravest first.
UNTRUE = ("impossible", "contradicted")  # with such a time, an implementation is not the fastest
UNCERTAIN = ("contended", "power_capped", "not_converged", "timer_limited", "launch_bound")
GRAVITY = ("wrong", "debug", *UNTRUE, "fallback", *UNCERTAIN, "ok")  # the worker adds "debug" and "fallback"


def verdict(columns: Mapping[str, Scalar], target_pct: float, wrong: str = "") -> dict[str, Scalar]:
    """Return ``verdict`` and ``verdict_reason``: the gravest doubt about the time in ``columns``, or "ok".

    ``wrong`` is the error of the outputs of the timed calls, or empty.
    """
    if wrong:
        return {"verdict": "wrong", "verdict_reason": f"in the timed calls: {wrong}"}
    word, reason = next(_doubts(columns, target_pct), ("ok", ""))
    return {"verdict": word, "verdict_reason": reason}


def _doubts(columns: Mapping[str, Any], target_pct: float) -> Iterator[tuple[str, str]]:
    """Yield each doubt and its reason, the gravest first. Columns of other devices and instruments are absent."""
    instrument, kernels = columns["instrument"], columns.get("n_kernels")
    time_us: Any = columns.get("gpu_us")  # None on a CPU
    fastest_us, cupti_us = map(columns.get, ("fastest_possible_us", "cupti_us"))
    clock, unloaded = map(columns.get, ("sm_clock_mhz", "unloaded_clock_mhz"))

    if kernels == 0:
        yield "impossible", "the call ran no kernel, copy or fill: its outputs were computed before"
    if fastest_us is not None and time_us < fastest_us:
        least = figure(fastest_us, "us", 3)
        yield "impossible", f"this GPU cannot do it in less than {least}, by the rates measured on it"

    if cupti_us is not None and kernels == 1 and instrument != "host_clock":
        uncertainty_us = columns.get("high_us", time_us) - time_us  # up to 4.4 us for events
        # CUPTI's calls are made one by one at the unloaded clock; the instrument's may be at a lower clock.
        slowed = max(0.0, 1 - clock / unloaded) if clock and unloaded else 0.0
        share = WATCHED_SHARE if cupti_us > time_us else DISAGREE_SHARE + min(slowed, MOST_SLOWED_SHARE)
        if abs(cupti_us - time_us) > max(DISAGREE_US, share * time_us, uncertainty_us):
            timed = f"{instrument} {figure(time_us, 'us', 3)}"
            yield "contradicted", f"CUPTI measured {figure(cupti_us, 'us', 3)} and {timed}"

    if (drift_us := columns.get("timer_drift_us", 0.0)) <= -MOST_DRIFT_US:
        change = f"the empty kernel's time dropped by {figure(-drift_us, 'us', 2)}"
        yield "contended", f"{change}: another process started or stopped using this GPU"
    if drift_us >= MOST_DRIFT_US and clock and unloaded and clock >= SLOWED * unloaded:
        change = f"the empty kernel's time rose by {figure(drift_us, 'us', 2)}"
        yield "contended", f"{change} since the timer offset was measured: another process was using this GPU then"
    if (waited_pct := columns.get("cpu_wait_pct", 0.0)) > CONTENDED_PCT:
        yield "contended", f"its threads waited {waited_pct:.0f} % of the time for other processes"

    # If available, the driver must report a limit too: tensor cores lower the clock without any limit (256^3 in
    # bfloat16: 1848 of 1981 MHz).
    limit = columns.get("throttle", "power most likely")
    if clock and unloaded and clock < SLOWED * unloaded and limit:
        yield "power_capped", f"the GPU met a limit ({limit}): its clock was {clock:.0f} of {unloaded:.0f} MHz"

    stat_pct, interval_pct = columns["stat_pct"], columns["interval_pct"]  # None if the time is 0
    if not columns["converged"] and stat_pct is not None:
        drift = f"{DRIFTS} by {columns['drift_pct']:+.1f} % from its first tenth to its last"
        spread = f"the interval is {interval(stat_pct, '+-')} after {columns['samples']} samples"
        reasons = [drift] * (abs(columns["drift_pct"]) > target_pct) + [spread] * (stat_pct > target_pct)
        yield "not_converged", "; ".join(reasons or [spread])

    if interval_pct is None:
        yield "timer_limited", f"{instrument} cannot distinguish the call from an empty one"
    elif (best_pct := math.sqrt(max(0.0, interval_pct**2 - (stat_pct or 0.0) ** 2))) > target_pct:
        # More samples do not reduce the rest of the interval.
        yield "timer_limited", f"{instrument} measures so short a call to {interval(best_pct, '+-')} at best"

    if launch_bound(columns):
        every, busy = (figure(columns[name], "us") for name in ("pipelined_us", _warm(columns)))
        yield "launch_bound", f"back to back, a call takes {every}, of which the GPU works {busy}: launching limits it"


def launch_bound(columns: Mapping[str, Any]) -> bool:
    """Return whether calls back to back take longer than the GPU works, since launching limits them."""
    pipelined_us, warm_us = columns.get("pipelined_us"), columns.get(_warm(columns))
    if pipelined_us is None or warm_us is None:
        return False
    return bool(pipelined_us > max(LAUNCH_SHARE * warm_us, warm_us + LAUNCH_US))


def _warm(columns: Mapping[str, Any]) -> str:
    """Return the name of the time to compare with calls back to back, whose cache is warm."""
    return "gpu_warm_us" if "gpu_warm_us" in columns else "gpu_us"

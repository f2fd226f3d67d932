"""How far to trust what was measured: one word, and one sentence of why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.experiment.case import Scalar

SLOWED = 0.98  # share of the unloaded clock below which a limit of power or heat may have acted
DISAGREE_US, DISAGREE_SHARE = 1.0, 0.05  # between the instrument and CUPTI, for a call of a single kernel
WATCHED_SHARE = 0.1  # and where CUPTI says more: a kernel takes up to 7.7 % longer while CUPTI records it
CONTENDED_PCT = 2.0  # of the time without a core: 0.3 on a quiet machine, 37 beside one busy process on two cores
MOST_DRIFT_US = 0.2  # half of what another process's context has been seen to do
BOUND_BY_LAUNCH = 2.0  # times the GPU's own time that a caller waits


def verdict(columns: Mapping[str, Scalar], target_pct: float, wrong: str = "") -> dict[str, Scalar]:
    """``verdict`` and ``verdict_reason``: the first doubt there is, in order of weight.

    ``wrong`` is what is wrong with the outputs of the timed calls themselves.
    """
    if wrong:
        return {"verdict": "wrong", "verdict_reason": f"in the timed calls: {wrong}"}
    for word, doubt in DOUBTS.items():
        if reason := doubt(columns, target_pct):
            return {"verdict": word, "verdict_reason": reason}
    return {"verdict": "ok", "verdict_reason": ""}


def _power_capped(columns: Mapping[str, Any], target_pct: float) -> str:
    """By clock and driver: tensor cores alone lower the clock, at no limit (256^3 in bfloat16: to 1848 of 1981 MHz)."""
    clock, unloaded = columns.get("sm_clock_mhz"), columns.get("unloaded_clock_mhz")
    limit = columns.get("throttle", "power most likely")  # where the driver cannot be asked
    if not clock or not unloaded or clock >= SLOWED * unloaded or not limit:
        return ""
    return f"the GPU met a limit ({limit}): its clock was {clock:.0f} of {unloaded:.0f} MHz"


def _not_converged(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns["converged"] or columns["stat_pct"] is None:  # of no time at all: timer_limited says it better
        return ""
    spread = f"the interval is +-{columns['stat_pct']:.1f} % after {columns['samples']} samples"
    drift = columns["drift_pct"]
    return f"the time drifts by {drift:+.1f} %; {spread}" if abs(drift) > target_pct else spread


def _impossible(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns.get("n_kernels") == 0:
        return "it ran no kernel, copy or fill: what it gave had been there before"
    least = columns.get("fastest_possible_us")
    if least is None or columns["gpu_us"] >= least:
        return ""
    return f"this GPU cannot do it in less than {least:.3g} us, by the rates measured on it"


def _contradicted(columns: Mapping[str, Any], target_pct: float) -> str:
    cupti, time = columns.get("cupti_us"), columns.get("gpu_us")
    if columns.get("instrument") == "host_clock" or cupti is None or time is None or columns.get("n_kernels") != 1:
        return ""
    doubted_us = columns.get("high_us", time) - time  # of events, which owns up to 4.4 us, more than of timestamps
    share = WATCHED_SHARE if cupti > time else DISAGREE_SHARE
    if abs(cupti - time) <= max(DISAGREE_US, share * time, doubted_us):
        return ""
    return f"CUPTI says {cupti:.3g} us where {columns['instrument']} says {time:.3g} us"


def _timer_limited(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns["interval_pct"] is None:
        return f"{columns['instrument']} cannot tell it from a call that does nothing"
    best_pct = math.sqrt(max(0.0, columns["interval_pct"] ** 2 - (columns["stat_pct"] or 0.0) ** 2))
    if best_pct <= target_pct:  # what is left of the interval when sampling has nothing to add
        return ""
    return f"so short a call is known to +-{best_pct:.1f} % at best with {columns['instrument']}"


def _launch_bound(columns: Mapping[str, Any], target_pct: float) -> str:
    time, seen = columns.get("gpu_us"), columns.get("latency_us")
    if not time or not seen or (columns.get("n_kernels") or 1) == 1 or seen <= BOUND_BY_LAUNCH * time:
        return ""
    return f"a caller waits {seen:.4g} us: launching takes longer than the {time:.4g} us that the GPU works"


def _contended(columns: Mapping[str, Any], target_pct: float) -> str:
    if (moved_us := columns.get("timer_drift_us") or 0.0) <= -MOST_DRIFT_US:
        return f"what does nothing reads {-moved_us:.2g} us less than its zero: other processes come to this GPU and go"
    waited = columns.get("cpu_wait_pct", 0.0)
    return f"its threads waited {waited:.0f} % of the time for other processes" if waited > CONTENDED_PCT else ""


UNTRUE = {"impossible": _impossible, "contradicted": _contradicted}  # a time that nobody is to be praised for
DOUBTS = UNTRUE | {
    "contended": _contended,
    "power_capped": _power_capped,
    "not_converged": _not_converged,
    "timer_limited": _timer_limited,
    "launch_bound": _launch_bound,
}
# The gravest first; what is no doubt about times is the worker's.
GRAVITY = ("wrong", "debug", *UNTRUE, "fallback", *(word for word in DOUBTS if word not in UNTRUE), "ok")

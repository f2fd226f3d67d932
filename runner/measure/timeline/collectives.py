"""Figures of the ranks of a call: how long collectives ran, how much of it other kernels hid, and who computed nothing.

A kernel of a collective begins when its own rank is ready, and waits in it for the others. So a rank that waits has a
collective running, and computes nothing. Time lines of ranks are compared by their lengths, since ranks start a call
together.
"""

import re
from collections.abc import Sequence
from statistics import fmean

from ...records.case import Scalar
from ...records.columns import Column
from ...records.figures import figure
from ...timing.timeline import covered, whole
from . import ApiCall

# In the name of a kernel, or of a copy between GPUs.
COLLECTIVE = re.compile(r"nccl|(one|two)_shot_all|multimem|PtoP|Peer", re.IGNORECASE)
COLUMNS = {
    "profile_collective_us": Column("us", "time of a call in which a collective ran, waiting included: mean of ranks"),
    "profile_overlap_pct": Column("%", "share of that time in which another kernel ran on the same GPU", "higher"),
    "profile_ranks_idle_pct": Column(
        "%", "share of the slowest rank's call in which a rank computes nothing: mean of ranks", "lower"
    ),
    "profile_ranks_idle": Column(
        "", "time of each rank, from rank 0 on, in which it computes nothing: in collectives, in gaps, after its end"
    ),
}


def figures(calls: Sequence[ApiCall]) -> dict[str, Scalar]:
    """Return the values of ``COLUMNS`` from the calls of this rank and of the others; {} for a call on one rank."""
    from ...timing import ranks  # here, since it imports torch

    own = [_parts(call) for call in calls]
    every = ranks.current.gather([fmean(times) for times in zip(*own, strict=True)])
    if len(every) == 1:
        return {}
    collective_us, hidden_us = (fmean(times[part] for times in every) for part in (2, 3))
    longest_us = max(times[0] for times in every)
    idle_us = [longest_us - computing_us for _, computing_us, *_ in every]
    return {
        "profile_collective_us": collective_us,
        "profile_overlap_pct": 100 * hidden_us / collective_us if collective_us else None,
        "profile_ranks_idle_pct": 100 * fmean(idle_us) / longest_us,
        "profile_ranks_idle": ", ".join(f"rank {rank} {figure(us, 'us')}" for rank, us in enumerate(idle_us)),
    }


def _parts(call: ApiCall) -> tuple[float, float, float, float]:
    """Return the time in us of a call, of its computation, of its collectives, and of both at once."""
    collectives = [event for event in call.work if COLLECTIVE.search(event.name)]
    others = [event for event in call.work if not COLLECTIVE.search(event.name)]
    computing, communicating = covered(others), covered(collectives)
    return whole(call.work), computing, communicating, computing + communicating - covered(call.work)

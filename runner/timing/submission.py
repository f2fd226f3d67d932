"""How long the GPU spins while the host submits a call, so that no launch gap is part of the call's time."""

from __future__ import annotations

CYCLES_A_SECOND = 2e9  # about the highest clock of any GPU: at a lower one a spin is longer, which does no harm
LONGEST_S = 0.005  # a spin that waits for a call that waits for the GPU must end
SLACK = 1.5  # of the spin over the time that submitting took before


def spin_cycles(submit_s: float) -> int:
    """Of a multiprocessor, behind which a call can be submitted that took ``submit_s`` seconds before."""
    return int(min(SLACK * submit_s, LONGEST_S) * CYCLES_A_SECOND)

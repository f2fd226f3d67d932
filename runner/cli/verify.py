"""Check whether the timings of this machine can be trusted, on kernels of known length.

It takes up to a minute; run nothing else meanwhile. If all self-tests can be judged, their results are kept as the
certificate of this machine. The exit code is 0 if all passed, 1 otherwise, 130 after an interrupt.

Examples:
  python -m runner verify --device cpu

"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ..records.bad_input import BadInput
from ..records.debugging import interpreted
from ..report.console import console, say
from ..report.table import Mark, Table, draw, rich_text
from ._parser import Parser

if TYPE_CHECKING:
    from ..timing.verify.checks import Check


def main(argv: Sequence[str]) -> int:
    """Run the self-tests. Return 0 if all passed, 130 if interrupted, else 1. Raises BadInput."""
    parser = Parser("verify", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="what to verify; by default the GPU if there is one")
    options = parser.parse(argv)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would log each time that it starts
    warnings.filterwarnings("ignore", message=".*Profiler clears events")

    from ..timing import verify

    device, name = _device(options.device)
    out = console()
    count, done, disturbed = len(verify.self_tests(device)), 0, 0

    def on_check(check: str, findings: Sequence[Check], seconds: float) -> None:
        nonlocal done, disturbed
        done, disturbed = done + 1, disturbed + (not findings)
        result = _passed(findings) if findings else "too busy to judge, try again"
        say(out, f"[{done}/{count}] {check}: {result} ({seconds:.1f} s)")

    say(out, f"Verifying {name}: {count} self-tests of the timer, up to a minute. Run nothing else meanwhile.")
    try:
        with out.status("measuring") if out.is_terminal else nullcontext():
            findings = verify.run_checks(device, verify.settings(), on_check)
    except KeyboardInterrupt:
        say(out, "interrupted: nothing is certified")
        return 128 + signal.SIGINT
    if findings:
        say(out, rich_text(draw(_table(findings), None)[0]))
    if disturbed:
        unjudged = f"{disturbed} of {count} self-tests could not be judged, since other processes use this machine"
        say(out, f"{unjudged}: stop them, then try again. Nothing is certified.")
        return 1
    path = verify.certify(device, findings)
    kept = f"Certificate: {path}" if path else "The cache folder cannot hold a certificate."
    say(out, f"{_passed(findings)}. {kept}")
    return 0 if all(finding.passed for finding in findings) else 1


def _table(checks: Sequence[Check]) -> Table:
    rows = [(check.name, check.found, check.bar, "pass" if check.passed else "FAIL") for check in checks]
    marks = {row: dict[int, Mark]({3: "good" if check.passed else "bad"}) for row, check in enumerate(checks)}
    return Table("", ("check", "found", "limit", ""), [("", rows)], left=frozenset(range(4)), marks=marks)


def _device(requested: str | None) -> tuple[str, str]:
    """Return the device to verify and its name. Raises BadInput if it is not there."""
    import torch

    from ..device.identity import cpu_model

    available = torch.cuda.is_available()
    if requested == "cuda" and not available:
        raise BadInput("--device cuda: torch sees no NVIDIA GPU here; give --device cpu, or go where there is one")
    if not available or requested == "cpu":
        return "cpu", cpu_model() or "this CPU"
    if interpreted():
        raise BadInput("TRITON_INTERPRET=1 runs the timer's kernels on the CPU; unset it, or give --device cpu")
    return "cuda", torch.cuda.get_device_name()


def _passed(findings: Sequence[Check]) -> str:
    return f"{sum(finding.passed for finding in findings)} of {len(findings)} passed"

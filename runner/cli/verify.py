"""``python -m runner verify``: whether the timings of this machine can be trusted."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from runner.config import CONF
from runner.experiment.case import interpreted
from runner.experiment.schema import BadInput, Parser

if TYPE_CHECKING:
    from rich.table import Table

    from runner.timing.verify import Finding


def main(argv: Sequence[str]) -> int:
    """Run the self-tests. Return 0 if all passed, 130 if interrupted, else 1. Raises BadInput."""
    parser = Parser(prog="runner verify", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="what to verify; by default the GPU if there is one")
    asked = parser.parse_args(argv).device
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would log each time that it starts
    warnings.filterwarnings("ignore", message=".*Profiler clears events")

    from runner.report.terminal import console
    from runner.timing import verify

    device, name = _device(asked)
    out = console()
    count, done, disturbed = len(verify.checks(device)), 0, 0

    def say(text: str) -> None:
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    def on_check(check: str, findings: Sequence[Finding], seconds: float) -> None:
        nonlocal done, disturbed
        done, disturbed = done + 1, disturbed + (not findings)
        result = _passed(findings) if findings else "too busy to judge, try again"
        say(f"[{done}/{count}] {check}: {result} ({seconds:.1f} s)")

    say(f"Verifying {name}: {count} self-tests of the timer, up to a minute. Run nothing else meanwhile.")
    try:
        with out.status("measuring") if out.is_terminal else nullcontext():
            findings = verify.run(device, verify.settings(CONF), on_check)
    except KeyboardInterrupt:
        say("interrupted: nothing is certified")
        return 128 + signal.SIGINT
    if findings:
        out.print(_table(findings))
    if disturbed:
        unjudged = f"{disturbed} of {count} self-tests could not be judged, since other processes use this machine"
        say(f"{unjudged}: stop them, then try again. Nothing is certified.")
        return 1
    path = verify.certify(device, findings)
    say(f"{_passed(findings)}. " + (f"Certificate: {path}" if path else "The cache folder cannot hold a certificate."))
    return 0 if all(finding.passed for finding in findings) else 1


def _table(findings: Sequence[Finding]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table("check", "found", "bar", "", box=box.SIMPLE_HEAD, header_style="bold")
    for finding in findings:
        result = Text("pass", style="green") if finding.passed else Text("FAIL", style="bold red")
        drawn.add_row(Text(finding.name), Text(finding.found), Text(finding.bar), result)
    return drawn


def _device(asked: str | None) -> tuple[str, str]:
    """Return the device to verify and its name. Raises BadInput if it is not there."""
    import torch

    from runner.device.identity import cpu_model

    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise BadInput("--device cuda: torch sees no NVIDIA GPU here; give --device cpu, or go where there is one")
    if not available or asked == "cpu":
        return "cpu", cpu_model() or "this CPU"
    if interpreted():
        raise BadInput("TRITON_INTERPRET=1 runs the timer's kernels on the CPU; unset it, or give --device cpu")
    return "cuda", torch.cuda.get_device_name()


def _passed(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.passed for finding in findings)} of {len(findings)} passed"

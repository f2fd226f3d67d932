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
    """0 if every check passed, 1 if one failed, 130 if interrupted. Raises BadInput before anything is started."""
    asked = _arguments(argv)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch's profiler tells the user of each time it is asked
    warnings.filterwarnings("ignore", message=".*Profiler clears events")

    from rich.console import Console

    from runner.timing import verify

    device, name = _device(asked)
    console = Console()
    if not console.is_terminal:
        console = Console(width=400)  # a pipe or a file has room for the whole table
    count = len(verify.checks(device))

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(f"Verifying {name}: {count} self-tests of its timings, up to half a minute. Leave it to itself meanwhile.")
    status = console.status("measuring") if console.is_terminal else nullcontext()
    ended = 0

    def tell(check: str, findings: Sequence[Finding], seconds: float) -> None:
        nonlocal ended
        ended += 1
        say(f"[{ended}/{count}] {check}: {_tally(findings)} ({seconds:.1f} s)")

    try:
        with status:
            findings = verify.run(device, verify.settings(CONF), tell)
    except KeyboardInterrupt:
        say("interrupted: nothing is certified")
        return 128 + signal.SIGINT
    console.print(table(findings))
    kept = verify.certify(device, findings)
    say(f"{_tally(findings)}. " + (f"Certificate: {kept}" if kept else "The cache folder cannot hold a certificate."))
    return 0 if all(finding.passed for finding in findings) else 1


def table(findings: Sequence[Finding]) -> Table:
    """One line per finding."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for title in ("check", "found", "bar", ""):
        drawn.add_column(title)
    for one in findings:
        word = Text("pass", style="green") if one.passed else Text("FAIL", style="bold red")
        drawn.add_row(Text(one.name), Text(one.found), Text(one.bar), word)
    return drawn


def _arguments(argv: Sequence[str]) -> str | None:
    parser = Parser(prog="runner verify", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="what is to be verified; by default the GPU if any")
    asked: str | None = parser.parse_args(argv).device
    return asked


def _device(asked: str | None) -> tuple[str, str]:
    """Which device it is, and its name. Raises BadInput if it is not there."""
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


def _tally(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.passed for finding in findings)} of {len(findings)} passed"

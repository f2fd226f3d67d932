"""``python -m runner doctor``: what this machine can do, and what to type for each thing that is missing."""

from __future__ import annotations

from collections.abc import Sequence

from runner.experiment.schema import Parser

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "missing": ("✗", "bold red")}


def main(argv: Sequence[str]) -> int:
    """Print the findings. Return 1 if torch cannot be imported, so that no case can run; else 0. Raises BadInput."""
    Parser(prog="runner doctor", description=__doc__).parse_args(argv)

    from rich.console import Console
    from rich.text import Text

    from runner.device import doctor

    console, able = Console(soft_wrap=True, highlight=False), True
    for kind, findings in doctor.examine():
        console.print(Text(kind, style="bold"))
        width = max((len(finding.what) for finding in findings), default=0)
        for finding in findings:
            mark, style = MARKS[finding.state]
            console.print(
                Text(f"  {mark} ", style=style).append(f"{finding.what.ljust(width)}  {finding.found}", "default")
            )
            if finding.advice:
                console.print(Text(f"    {' ' * width}  → {finding.advice}"))
            able = able and (finding.what, finding.state) != ("torch", "missing")
    return 0 if able else 1

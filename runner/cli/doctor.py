"""``python -m runner doctor``: what this machine can do, and what to type for each thing that it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from runner.experiment.schema import Parser

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "missing": ("✗", "bold red")}


def main(argv: Sequence[str]) -> int:
    """0 if cases can be run here, 1 if not even torch can be imported. Raises BadInput."""
    Parser(prog="runner doctor", description=__doc__).parse_args(argv)

    from rich.console import Console
    from rich.text import Text

    from runner.device import doctor

    console, able = Console(soft_wrap=True, highlight=False), True
    for kind, findings in doctor.examine():
        console.print(Text(kind, style="bold"))
        width = max((len(one.what) for one in findings), default=0)
        for one in findings:
            mark, style = MARKS[one.state]
            console.print(
                Text(f"  {mark} ", style=style) + Text(f"{one.what.ljust(width)}  {one.found}", style="default")
            )
            if one.advice:
                console.print(Text(f"    {' ' * width}  → {one.advice}"))
            able = able and (one.what, one.state) != ("torch", "missing")
    return 0 if able else 1

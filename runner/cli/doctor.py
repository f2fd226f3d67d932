"""Print what this machine can do, and what to type for each thing that is missing.

Examples:
  python -m runner doctor

"""

from collections.abc import Sequence

from ._parser import Parser

MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "missing": ("✗", "bold red")}


def main(argv: Sequence[str]) -> int:
    """Print the checks. Return 1 if torch cannot be imported, so that no case can run; else 0. Raises BadInput."""
    Parser("doctor", __doc__).parse(argv)

    from rich.console import Console
    from rich.text import Text

    from ..device import doctor

    console, able = Console(soft_wrap=True, highlight=False), True
    for kind, checks in doctor.examine():
        console.print(Text(kind, style="bold"))
        width = max((len(check.what) for check in checks), default=0)
        for check in checks:
            mark, style = MARKS[check.state]
            console.print(Text(f"  {mark} ", style=style).append(f"{check.what.ljust(width)}  {check.text}", "default"))
            if check.advice:
                console.print(Text(f"    {' ' * width}  → {check.advice}"))
            able = able and (check.what, check.state) != ("torch", "missing")
    return 0 if able else 1

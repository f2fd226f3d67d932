"""Draw ``docs/images/timers.svg``: how far each timer is from CUPTI, by the recorded page of an H200.

python docs/chart.py           write it
python docs/chart.py --check   exit with 1 if it is stale
"""

from __future__ import annotations

import re
import sys
from math import log10
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
(PAGE,) = (ROOT / "benchmarks").glob("**/timer_accuracy-nvidia-h200.md")
SVG = ROOT / "docs" / "images" / "timers.svg"

TITLE = "Distance from CUPTI's time of a GELU kernel, NVIDIA H200 (lower is better)"
TIMERS = {  # heading of the recorded table: label of the line, color, width
    "wall clock": ("wall clock", "#8a8a8a", 1.5),
    "do_bench, mean": ("triton do_bench", "#d1495b", 1.5),
    "Timer": ("torch Timer", "#edae49", 1.5),
    "do_bench_cudagraph": ("do_bench_cudagraph", "#00798c", 1.5),
    "ours": ("this project", "#2e4057", 3.0),
}
WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 40, 48
X, Y = (1.0, 600.0), (0.005, 30.0)  # limits in us, logarithmic


def recorded(page: str) -> dict[str, list[tuple[float, float]]]:
    """Return (CUPTI's time in us, distance from it in us) at each size, for each timer of the first table."""
    table = page.partition("| elements | CUPTI, us |")[2].partition("\n\n")[0].splitlines()
    titles = [title.strip() for title in table[0].strip(" |").split("|")]
    points: dict[str, list[tuple[float, float]]] = {title: [] for title in TIMERS}
    for line in table[2:]:
        true, *cells = [cell.strip() for cell in line.strip(" |").split("|")][1:]
        for title, cell in zip(titles, cells, strict=False):
            if title in TIMERS and (found := re.search(r"\(([+-][\d.]+),", cell)):
                points[title].append((float(true.split()[0]), abs(float(found[1]))))
    return points


def draw(points: dict[str, list[tuple[float, float]]]) -> str:
    """Return the chart of ``points`` as SVG; both axes are logarithmic."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{TITLE}</text>',
    ]
    for us in (1.0, 10.0, 100.0):
        parts.append(_line([(us, Y[0]), (us, Y[1])], "#e4e4e4", 1))
        parts.append(f'<text x="{_x(us):.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{us:g} us</text>')
    for us in (0.01, 0.1, 1.0, 10.0):
        parts.append(_line([(X[0], us), (X[1], us)], "#e4e4e4", 1))
        parts.append(f'<text x="{LEFT - 8}" y="{_y(us) + 4:.0f}" text-anchor="end">{us:g} us</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">time of the kernel by CUPTI</text>')
    below = 0.0
    for title, (label, color, width) in TIMERS.items():
        below = max(_y(points[title][-1][1]) + 4, below + 15)  # two labels never lie on each other
        parts.append(_line(points[title], color, width))
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{below:.0f}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: list[tuple[float, float]], color: str, width: float) -> str:
    places = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def _x(us: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * log10(us / X[0]) / log10(X[1] / X[0])


def _y(us: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * log10(max(us, Y[0]) / Y[0]) / log10(Y[1] / Y[0])


def main(check: bool) -> int:
    """Write the chart, or with ``check`` say whether it is stale."""
    wanted = draw(recorded(PAGE.read_text(encoding="utf-8")))
    if not check:
        SVG.parent.mkdir(exist_ok=True)
        SVG.write_text(wanted, encoding="utf-8")
    elif not SVG.is_file() or SVG.read_text(encoding="utf-8") != wanted:
        print(f"{SVG.relative_to(ROOT)} is stale; run: python docs/chart.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))

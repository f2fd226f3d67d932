"""Folded stacks of recorded calls, and their flame graph as an SVG file for any browser.

A box is as wide as the time spent in it and above it. To zoom, open ``stacks.txt`` in speedscope.
"""

import colorsys
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from ...records.figures import figure
from .. import CALL
from ..timeline import ApiCall, Event
from ..timeline.tables import LONGEST_NAME, short

Stacks = Mapping[tuple[str, ...], float]  # frames, outermost first → time per call in us

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
OURS = ("torch/autograd/profiler.py(", "kernels/spans.py(")  # Python code that names parts

WIDTH, ROW, MARGIN, HEAD = 1200.0, 18.0, 10.0, 40.0  # in pixels
NARROWEST = 0.3  # narrower boxes cannot be seen
LETTER = 6.7  # width of a letter in the font below

STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #222; pointer-events: none }
rect { stroke: #fff; stroke-width: 0.5 } g:hover rect { stroke: #000; stroke-width: 1.2 }
text.title { font-size: 14px }
"""


def of_gpu(calls: Sequence[ApiCall]) -> Stacks:
    """Return the time of each kernel, on the stack that launched it."""
    return _mean([((*work.stack, work), work.us) for call in calls for work in call.work], len(calls))


def of_host(calls: Sequence[ApiCall]) -> Stacks:
    """Return the host time of each event, without the events that it encloses."""
    stacks = [((*event.stack, event), event.self_us) for call in calls for event in call.host]
    return _mean([*stacks, *(((), call.span.self_us) for call in calls)], len(calls))


def _mean(stacks: Iterable[tuple[tuple[Event, ...], float]], calls: int) -> Stacks:
    sums: dict[tuple[str, ...], float] = {}
    for events, us in stacks:
        if not any(event.name.startswith(OURS) for event in events):
            # Addresses differ between calls; a semicolon separates frames, and a new line stacks.
            names = (" ".join(ADDRESS.sub("", event.name).replace(";", ":").split()) for event in events)
            frames = (CALL, *names)
            sums[frames] = sums.get(frames, 0.0) + us / calls
    return sums


def folded(stacks: Stacks) -> str:
    """Return a line for each stack, in ns; stacks shorter than half a nanosecond are left out."""
    lines = (f"{';'.join(frames)} {1000 * us:.0f}" for frames, us in stacks.items() if 1000 * us >= 0.5)
    return "".join(f"{line}\n" for line in lines)


def draw(stacks: Stacks, title: str) -> str:
    """Return the SVG of ``stacks``, which all begin with ``call``; the widest box is at the bottom."""
    height = HEAD + ROW * max(map(len, stacks), default=1) + MARGIN
    total_us = sum(stacks.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#fff"/>',
        f'<text class="title" x="{MARGIN:g}" y="24">{escape(title)}</text>',
        *(_boxes(stacks, 0, MARGIN, height - MARGIN - ROW, total_us) if total_us else ()),
    ]
    return "\n".join([*lines, "</svg>\n"])


def _boxes(stacks: Stacks, depth: int, x: float, y: float, total_us: float) -> Iterator[str]:
    """Yield the boxes at ``depth``, beginning at ``x``, each followed by the boxes above it."""
    children: dict[str, dict[tuple[str, ...], float]] = {}
    for frames, us in stacks.items():
        if len(frames) > depth:
            children.setdefault(frames[depth], {})[frames] = us
    for name, inside in children.items():
        us = sum(inside.values())
        width = us / total_us * (WIDTH - 2 * MARGIN)
        if width >= NARROWEST:
            hover = f"{name}\n{figure(us, 'us')}, {100 * us / total_us:.3g} % of a call"
            yield (
                f'<g><title>{escape(hover)}</title><rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{ROW:g}" '
                f'fill="{_color(name)}"/>{_label(name, x, y, width)}</g>'
            )
            yield from _boxes(inside, depth + 1, x, y - ROW, total_us)
        x += width


def _label(name: str, x: float, y: float, width: float) -> str:
    letters = int((width - 6) / LETTER)
    if letters < 3:
        return ""
    text = short(name, min(letters, LONGEST_NAME))
    return f'<text x="{x + 3:.2f}" y="{y + 13:g}">{escape(text)}</text>'


def _color(name: str) -> str:
    """Return a color between yellow and red, the same for the same name in every graph."""
    seed = zlib.crc32(name.encode())
    hue, lightness, saturation = seed % 50 / 360, 0.62 + seed // 1250 % 14 / 100, 0.7 + seed // 50 % 25 / 100
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))

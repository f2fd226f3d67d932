"""A flame graph as one SVG file that needs nothing else: any browser shows it, and names what the pointer is on.

A box is as wide as what was spent in it and in what stands above it. No script is in it, so it cannot be zoomed into:
for that, give ``stacks.txt`` to speedscope.
"""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from runner.measure import CALL
from runner.measure.timeline import Call, Event
from runner.measure.timeline.tables import short

WIDTH, ROW, MARGIN, HEAD = 1200.0, 18.0, 10.0, 40.0  # in pixels
NARROWEST = 0.3  # boxes below it cannot be seen, let alone pointed at
LETTER = 6.7  # width of one, in the font below

STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #222; pointer-events: none }
rect { stroke: #fff; stroke-width: 0.5 } g:hover rect { stroke: #000; stroke-width: 1.2 }
text.title { font-size: 14px }
"""


@dataclass
class Frame:
    """A box: what was spent in it and above it, and what stands on it."""

    name: str
    us: float = 0.0
    above: dict[str, Frame] = field(default_factory=dict)

    @property
    def height(self) -> int:
        """Rows from it upwards."""
        return 1 + max((frame.height for frame in self.above.values()), default=0)


def draw(stacks: Stacks, title: str) -> str:
    """The SVG of ``stacks``, all of which begin with the same frame. The widest box is at the bottom."""
    root = _tree(stacks)
    height = HEAD + ROW * root.height + MARGIN
    boxes = _boxes(root, root.us, MARGIN, height - MARGIN - ROW, (WIDTH - 2 * MARGIN) / root.us if root.us else 0.0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH:g}" height="{height:g}" fill="#fff"/>',
            f'<text class="title" x="{MARGIN:g}" y="24">{escape(title)}</text>',
            *boxes,
            "</svg>\n",
        ]
    )


def _tree(stacks: Stacks) -> Frame:
    bottom = Frame("")
    for frames, us in stacks.items():
        here = bottom
        for name in frames:
            here = here.above.setdefault(name, Frame(name))
            here.us += us
    return next(iter(bottom.above.values()), Frame("nothing"))


def _boxes(frame: Frame, total_us: float, x: float, y: float, scale: float) -> Iterator[str]:
    """``frame`` at ``x``, ``y``, and what stands on it, from left to right in the order of the stacks."""
    width = frame.us * scale
    if width < NARROWEST:
        return
    share = 100 * frame.us / total_us
    hover = f"{frame.name}\n{frame.us:.4g} us, {share:.3g} % of a call"
    yield (
        f'<g><title>{escape(hover)}</title><rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{ROW:g}" '
        f'fill="{_colour(frame.name)}"/>{_label(frame.name, x, y, width)}</g>'
    )
    for above in frame.above.values():
        yield from _boxes(above, total_us, x, y - ROW, scale)
        x += above.us * scale


def _label(name: str, x: float, y: float, width: float) -> str:
    room = int((width - 6) / LETTER)
    if room < 3:
        return ""
    text = short(name)
    text = text if len(text) <= room else text[: room - 1] + "…"
    return f'<text x="{x + 3:.2f}" y="{y + 13:g}">{escape(text)}</text>'


def _colour(name: str) -> str:
    """The same for the same name in every graph: from yellow to red. As #rrggbb, which every reader of SVG knows."""
    seed = zlib.crc32(name.encode())
    hue, lightness, saturation = seed % 50 / 360, 0.62 + seed // 1250 % 14 / 100, 0.7 + seed // 50 % 25 / 100
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


ADDRESS = re.compile(r" at 0x[0-9a-f]+")
OURS = (
    "torch/autograd/profiler.py(",
    "kernels/spans.py(",
)  # what naming the parts takes in Python, and no part of a call

Stacks = Mapping[tuple[str, ...], float]  # frames, outermost first → microseconds of one call


def of_gpu(calls: Sequence[Call]) -> Stacks:
    """Kernels at the end of what launched them, each for its own time."""
    return _mean([((*work.stack, work.event), work.event.us) for call in calls for work in call.work], len(calls))


def of_host(calls: Sequence[Call]) -> Stacks:
    """What the host did, each for its time without what it encloses."""
    found = [((*stack, event), event.self_us) for call in calls for event, stack in call.host]
    return _mean([*found, *(((), call.span.self_us) for call in calls)], len(calls))


def folded(stacks: Stacks) -> str:
    """The lines, in the order in which they are met first; what is shorter than half a nanosecond is left out."""
    lines = (f"{';'.join(frames)} {1000 * us:.0f}" for frames, us in stacks.items() if 1000 * us >= 0.5)
    return "".join(f"{line}\n" for line in lines)


def unfolded(text: str) -> Stacks:
    """The inverse of ``folded``, to its precision."""
    pairs = (line.rpartition(" ") for line in text.splitlines())
    return {tuple(frames.split(";")): int(count) / 1000 for frames, _, count in pairs}


def _mean(found: Iterable[tuple[tuple[Event, ...], float]], calls: int) -> Stacks:
    sums: dict[tuple[str, ...], float] = {}
    for events, us in found:
        if any(event.name.startswith(OURS) for event in events):
            continue
        frames = (CALL, *(_frame(event.name) for event in events))
        sums[frames] = sums.get(frames, 0.0) + us / calls
    return sums


def _frame(name: str) -> str:
    """A name without what parts frames and lines, and without addresses, of which each call has its own."""
    return " ".join(ADDRESS.sub("", name).replace(";", ":").split())

"""Charts as PNG and SVG files. Drawing them needs vl-convert: pip install 'kernel-runner[report]'."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ..findings.run import Run
from ..records.bad_input import BadInput
from .charts import charts
from .output import target, write_file

DRAWN: Mapping[str, Mapping[str, Any]] = {"png": {"scale": 2}, "svg": {}}  # arguments by the format


def convert() -> ModuleType:
    """Return the package vl-convert. Raises BadInput if it is not installed."""
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise BadInput("charts need vl-convert; pip install 'kernel-runner[report]'") from None
    return vl_convert


def drawn(spec: Mapping[str, Any], form: str) -> str | bytes:
    """Return the chart ``spec`` of Vega-Lite as "png" or "svg". Raises BadInput if vl-convert is not installed."""
    image: str | bytes = getattr(convert(), f"vegalite_to_{form}")(spec, **DRAWN[form])
    return image


def report_images(runs: Sequence[Run], options: Namespace, form: str) -> int:
    """Write each chart as "png" or "svg" into a folder, and print the paths, for ``runner report``. Raises BadInput."""
    convert()
    pictures = charts(runs)
    if not pictures:
        raise BadInput(f"{runs[0].folder}: no result is correct and has a time, so there is nothing to draw")
    folder = target(runs, options.output, f"-{form}")
    if folder.suffix in (".png", ".svg", ".html", ".pdf") or folder.is_file():
        raise BadInput(f"--output {folder}: give a folder; there are {len(pictures)} charts, one file each")
    for chart in pictures:
        write_file(folder / f"{chart.name}.{form}", drawn(chart.whole(), form))
        print(folder / f"{chart.name}.{form}")
    return 0

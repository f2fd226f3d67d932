"""Charts as PNG and SVG files. Drawing them needs vl-convert: pip install 'kernel-runner[report]'."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..findings.run import Run
from ..records.bad_input import BadInput
from .charts import charts
from .output import target, write_file

DRAWN: Mapping[str, Mapping[str, Any]] = {"png": {"scale": 2}, "svg": {}}  # arguments by the format


def convert() -> ModuleType:
    """Return the package that draws. Raises BadInput if it is not installed."""
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise BadInput("charts need vl-convert; pip install 'kernel-runner[report]'") from None
    return vl_convert


def drawn(spec: Mapping[str, Any], form: str) -> str | bytes:
    """Return the chart ``spec`` of Vega-Lite as "png" or "svg". Raises BadInput if vl-convert is not installed."""
    image: str | bytes = getattr(convert(), f"vegalite_to_{form}")(spec, **DRAWN[form])
    return image


def images(runs: Sequence[Run], output: Path | None, ending: str) -> list[Path]:
    """Write each chart as ``.png`` or ``.svg`` into the folder ``output``, and return the files. Raises BadInput."""
    convert()
    pictures = charts(runs)
    if not pictures:
        raise BadInput(f"{runs[0].folder}: no result is correct and has a time, so there is nothing to draw")
    folder = target(runs, output, f"-{ending.removeprefix('.')}")
    if folder.suffix in (".png", ".svg", ".html", ".pdf") or folder.is_file():
        raise BadInput(f"--output {folder}: give a folder; there are {len(pictures)} charts, one file each")
    files = [folder / f"{chart.name}{ending}" for chart in pictures]
    for file, chart in zip(files, pictures, strict=True):
        write_file(file, drawn(chart.whole(), ending.removeprefix(".")))
    return files


def report_images(runs: Sequence[Run], options: Namespace, ending: str) -> int:
    """Write the images and print their paths, for ``runner report``. Raises BadInput."""
    print("\n".join(map(str, images(runs, options.output, ending))))
    return 0

"""Every chart of the page as PNG, one file each; no browser is needed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.report.derive import Run


def report(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Write the images and print their paths. Raises BadInput."""
    from runner.report import charts

    print("\n".join(map(str, charts.images(runs, options.output, ".png"))))
    return 0

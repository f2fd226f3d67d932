"""When the folder of a run cannot be written any more: what has been measured is kept somewhere else."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.experiment.case import Case, Plan
from runner.experiment.results import Comparison, Row
from runner.store import run_folder
from runner.store.journal import Journal


def save(
    plan: Plan, cases: Sequence[Case], rows: Sequence[Row], rounds: Sequence[Comparison], environment: dict[str, Any]
) -> Path | None:
    """A folder among the temporary ones that can be resumed like any other; None if there is no room either."""
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"kernel-runner-{plan.name}-"))
        run_folder.write_plan(folder, plan, cases)
        run_folder.write_environment(folder, environment)
        with Journal(folder) as journal:
            for row in rows:
                journal.row(row)
            for each in rounds:
                journal.rounds(each)
    except OSError:
        if folder is not None:  # half of it is worth nothing
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def recite(rows: Sequence[Row]) -> None:
    """``rows`` as the journal has them, a line each, on stderr: the last place there is."""
    for row in rows:
        print(json.dumps({"record": "row", **row.to_record()}, separators=(",", ":")), file=sys.stderr)

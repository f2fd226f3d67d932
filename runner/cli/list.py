"""List past runs under output_dir, the newest last: date, name, device, commit, cases and failures.

The commit is that of the files that the run's rows ran, * if they differed from it. Give a folder to runner show.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.experiment.schema import BadInput, Parser, choices

if TYPE_CHECKING:
    from runner.report.past import Summary

COLUMNS = ("date", "time", "name", "device", "commit", "cases", "failed", "folder")
LIMIT = 100  # runs that are shown by default
RIGHT = ("cases", "failed")


def main(argv: Sequence[str]) -> int:
    """Print the list and return 0. Raises BadInput."""
    parser = Parser(
        prog="runner list", usage="runner list [output_dir=FOLDER] [--where ...] [--limit N]", description=__doc__
    )
    parser.add_argument("words", nargs="*", metavar="output_dir=FOLDER", help="where the runs are, if not in outputs")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help=f"only such runs: name=gelu,device=*H200*; one of {', '.join(COLUMNS)}",
    )
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"the newest N ({LIMIT}); 0: all")
    asked = parser.parse_intermixed_args(list(argv))
    if asked.limit < 0:
        raise BadInput(f"--limit {asked.limit}: give a whole number of at least 0")

    from runner.measure import text_table
    from runner.report import past, select

    output_dir = _output_dir(asked.words) or past.OUTPUTS
    folders = past.folders(output_dir)
    if not folders:
        raise BadInput(f"output_dir={output_dir}: there is no run in it; give output_dir=<folder> of runs")
    read = folders if asked.where or not asked.limit else folders[-asked.limit :]
    summaries = [past.summary(folder) for folder in read]
    for one in summaries:
        if one.problem or one.unreadable:
            problem = one.problem or f"{one.unreadable} records of its journal cannot be read"
            print(f"runner: {one.folder}: {problem}", file=sys.stderr)
    records = [_record(one) for one in summaries]
    if asked.where:
        records = [records[place] for place in select.where(records, asked.where, COLUMNS)]
    shown = records[-asked.limit :] if asked.limit else records
    table = [COLUMNS, *([str(record[name]) for name in COLUMNS] for record in shown)]
    print("\n".join(text_table(table, {place for place, name in enumerate(COLUMNS) if name not in RIGHT})))
    if older := (len(records) if asked.where else len(folders)) - len(shown):
        print(f"{older} older runs are not shown; --limit 0 shows all")
    return 0


def _output_dir(words: Sequence[str]) -> str:
    found = ""
    for word in words:
        name, equals, found = word.partition("=")
        if name != "output_dir" or not equals:
            raise BadInput(
                f"{word}: no argument of list; {choices(name, ['output_dir=<folder>', '--where', '--limit'])}"
            )
    return found


def _record(run: Summary) -> dict[str, Any]:
    """Return the cells of ``run`` by ``COLUMNS``."""
    return {
        "date": run.folder.parent.name,
        "time": run.folder.name[:8].replace("-", ":"),
        "name": run.name,
        "device": run.device,
        "commit": run.commit,
        "cases": run.cases if run.done == run.cases else f"{run.done} of {run.cases}",
        "failed": "" if run.problem else run.failed,
        "folder": str(run.folder),
    }

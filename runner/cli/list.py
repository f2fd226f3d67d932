"""List past runs, the newest last: date, name, device, commit, cases and failures.

The commit is of the files that the run used; * marks files that differed from it. --where takes the columns of this
list. Give a folder to runner show.

Examples:
  python -m runner list --limit 10
  python -m runner list output_dir=elsewhere --where name=gelu,device=*H200*

"""

import sys
from collections.abc import Sequence

from ..findings import select
from ..findings.past import summarize
from ..records.bad_input import BadInput
from ..report.table import Table, text_of
from ..store.run_folder import run_folders
from ._parser import Parser

COLUMNS = ("date", "time", "name", "device", "commit", "cases", "failed", "folder")
LEFT = frozenset(place for place, name in enumerate(COLUMNS) if name not in ("cases", "failed"))
LIMIT = 100  # runs that are shown by default


def main(argv: Sequence[str]) -> int:
    """Print the list and return 0. Raises BadInput."""
    parser = Parser("list", __doc__, ("output_dir", "where"))
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"the newest N ({LIMIT}); 0: all")
    options = parser.parse(argv)
    folders = run_folders(options.output_dir)
    if not folders:
        raise BadInput(f"output_dir={options.output_dir}: there is no run in it; give output_dir=<folder> of runs")
    summaries = [summarize(folder) for folder in (folders if options.where else folders[-options.limit :])]
    for problem in (problem for _, problem in summaries if problem):
        print(f"runner: {problem}", file=sys.stderr)
    records = [record for record, _ in summaries if record]
    if options.where:
        records = [records[place] for place in select.where(records, options.where, COLUMNS)]
    shown = records[-options.limit :]
    rows = [[str(record[name]) for name in COLUMNS] for record in shown]
    print(text_of(Table("", COLUMNS, [("", rows)], left=LEFT, rule=False)), end="")
    if older := len(folders) - len(summaries) + len(records) - len(shown):
        print(f"{older} older run{'s are' if older > 1 else ' is'} not shown; --limit 0 shows all")
    return 0

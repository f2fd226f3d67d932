"""Compare the same cases of several runs, or the cases of one run that differ in one field. Measures nothing.

RUN is the folder of a run, or last: the newest one under output_dir. The first run is the reference, A. What differs
between the runs beside the times is said first, then how each time compares (faster, slower, same or unclear, corrected
for the number of comparisons), then what cannot be compared and why. The exit code is 0 whatever was found; runner gate
judges.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.schema import BadInput, Parser, choices

if TYPE_CHECKING:
    from rich.text import Text

    from runner.experiment.results import Row
    from runner.report.compare import Comparison, LeftOut, Pair
    from runner.report.derive import Run
    from runner.report.formats import Sheet

    Cases = dict[str, list[Pair | LeftOut]]  # by what is to be said of them

EXAMPLES = """
  python -m runner compare outputs/<date>/<time>-<name> last
  python -m runner compare A B C --where workload=gelu --words slower,unclear
  python -m runner compare last --by dtype --reference float32
"""
FORMATS = ("table", "md", "csv", "json")
ENDINGS = {".md": "md", ".csv": "csv", ".json": "json"}  # of files
WORDS = ("faster", "slower", "same", "unclear")
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GAP = "   "
MOST_LISTED = 12  # names of cases with one reason on the terminal; other formats have them all
SOURCES = {
    "paired rounds": "the ratio is that of rounds in which both were measured in turn, not of the two times beside it",
    "replicas": "the processes of each side (3 or more) show how much they differ; another day may differ by more",
    "verify": "two times of one call from two processes differ by up to {} (95 %), by the certificate of verify, which "
    "knows the hours at which it was made: measure both with replicas=5 to see how much these cases differ",
}
REMEDY = "measure both with replicas=3, or run python -m runner verify before each"
STYLES = {"faster": "green", "slower": "bold red", "unclear": "yellow", "same": ""}


def main(argv: Sequence[str]) -> int:
    """Print the comparison and return 0. Raises BadInput."""
    asked = _parser().parse_intermixed_args(argv)
    folders, output_dir = _folders(asked.words)
    words = _chosen_words(asked.words_shown)
    form = asked.format or ENDINGS.get(Path(asked.output or "").suffix, "table")
    if asked.by is None and len(folders) < 2:
        raise BadInput("give two runs or more, as in runner compare A B; or one run and --by FIELD, as in --by dtype")
    if asked.by is not None and len(folders) > 1:
        raise BadInput("--by compares the cases of one run; leave it out to compare runs, or give one run")
    if asked.reference and asked.by is None:
        raise BadInput("--reference names a value of the field of --by; of several runs, the first is the reference")

    from runner.report import compare, formats
    from runner.report.terminal import console

    runs = _read(folders or ["last"], output_dir, asked.where)
    found = (
        compare.runs(runs, NAMES[: len(runs)]) if asked.by is None else compare.by(runs[0], asked.by, asked.reference)
    )
    header = _header(runs, asked.by, found)
    if form == "table":
        text = _table(found, words, header, None if asked.output else console().width)
        if not asked.output:
            console().print(text, soft_wrap=True)
            return 0
        content = f"{text.plain}\n"
    elif form == "md":
        content = formats.markdown(_sheet(found, words, header, _notes(found, words, None)))
    else:
        content = str(formats.RECORDS[form](_records(found, words, runs, asked.by)))
    if asked.output:
        formats.write(content, asked.output, runs, "compare")
    else:
        print(content, end="")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="runner compare",
        description=__doc__,
        examples=EXAMPLES,
        usage="runner compare RUN RUN [RUN...] [output_dir=FOLDER] [options] | RUN --by FIELD [options]",
    )
    parser.add_argument("words", nargs="*", metavar="RUN", help="folder of a run, or last; or output_dir=FOLDER")
    parser.add_argument("--by", metavar="FIELD", help="compare cases of one run that differ in this field alone")
    parser.add_argument(
        "--reference", metavar="VALUE", help="the value of that field to compare with; by default its first"
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="only such rows, as in runner show: workload=gelu,dtype=bfloat16; several values are alternatives",
    )
    parser.add_argument(
        "--words", dest="words_shown", metavar="WORD,...", help=f"show only these conclusions, of {', '.join(WORDS)}"
    )
    parser.add_argument("--format", choices=FORMATS, help="by default the one that FILE ends in, else table")
    parser.add_argument("--output", metavar="FILE", help="write it there; its folder must exist")
    return parser


def _folders(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the runs that are named, and the folder that ``last`` looks in. Raises BadInput."""
    from runner.report.past import OUTPUTS

    folders, output_dir = [], OUTPUTS
    for word in words:
        name, equals, value = word.partition("=")
        if name == "output_dir" and value:
            output_dir = value
        elif equals and "/" not in name and not Path(word).exists():
            raise BadInput(f"{name}: no field of compare; give folders of runs, output_dir=FOLDER, or --where {word}")
        else:
            folders.append(word)
    if len(folders) > len(NAMES):
        raise BadInput(f"{len(folders)} runs; give at most {len(NAMES)}")
    return folders, output_dir


def _chosen_words(asked: str | None) -> frozenset[str]:
    """Return the conclusions to show. Raises BadInput for an unknown one."""
    words = asked.split(",") if asked else WORDS
    if unknown := [word for word in words if word not in WORDS]:
        raise BadInput(f"--words {asked}: {unknown[0]!r} is no conclusion; {choices(unknown[0], WORDS)}")
    return frozenset(words)


def _read(folders: Sequence[str], output_dir: str, where: Sequence[str]) -> list[Run]:
    """Return the runs, with the rows that ``where`` chooses. Raises BadInput."""
    from runner.report import formats, past, select

    runs = past.read_all(folders, output_dir)
    seen: dict[Path, str] = {}
    for run, folder in zip(runs, folders, strict=True):
        if all(row.time_us is None for row in run.rows):
            ended = Counter(row.status for row in run.rows)
            rows = ", ".join(f"{count} {status}" for status, count in ended.items()) or "no case is done"
            raise BadInput(f"{run.folder}: it holds no time to compare ({rows})")
        if (other := seen.setdefault(run.folder.resolve(), folder)) is not folder or folders.count(folder) > 1:
            raise BadInput(f"{other} and {folder} are the same run; give two runs, or one and --by FIELD")
    if not where:
        return runs
    kept = select.where_in_each([formats.flat_records(run.lines) for run in runs], where)
    return [
        replace(run, rows=run.rows_of([run.lines[place] for place in places]))
        for run, places in zip(runs, kept, strict=True)
    ]


def _header(runs: Sequence[Run], by: str | None, found: Sequence[Comparison]) -> list[str]:
    """Return the title, a line for each run, and what differs between them."""
    from runner.report import compare

    if by is not None:
        named = ", ".join(one.name for one in found)
        return [f"{named} compared with {found[0].reference} ({by})", _described(runs[0], str(runs[0].folder))]
    lines = [f"{' and '.join(one.name for one in found)} compared with A"]
    lines += [_described(run, f"{name}: {run.folder}") for name, run in zip(NAMES, runs, strict=False)]
    for one, run in zip(found, runs[1:], strict=True):
        differs = compare.differences(runs[0], run, (one.reference, one.name))
        lines += [
            f"{one.name} differs from A in what follows."
            if differs
            else f"{one.name} and A: no difference is recorded."
        ]
        lines += [f"  {text}" for text in differs]
    return lines


def _described(run: Run, name: str) -> str:
    """Return ``name`` with the date, the devices, the commits and the number of cases of a run."""
    started = str(run.environment.get("started", ""))[:16].replace("T", " ")
    devices = ", ".join(dict.fromkeys(row.device for row in run.rows if row.device))
    commits = f"commit {run.commits}" if run.commits else ""
    return ", ".join(filter(None, [name, started, devices, commits, f"{len(run.lines)} cases"]))


def _sheet(
    found: Sequence[Comparison], words: frozenset[str], title: Sequence[str] = (), notes: Sequence[str] = ()
) -> Sheet:
    """Return the table: the reference's time, and how each other side compares to it."""
    from runner.experiment.results import figure
    from runner.report.formats import Sheet

    mixed = len({pair.source for one in found for pair in one.pairs if pair.source != "unknown"}) > 1
    rows: dict[tuple[str, str], dict[str, Pair]] = {}
    for one in found:
        for pair in one.pairs:
            rows.setdefault((pair.problem, pair.implementation), {})[one.name] = pair
    groups: dict[str, list[Sequence[str]]] = {}
    for (problem, implementation), pairs in rows.items():
        if any(pair.word in words for pair in pairs.values()):
            first = next(iter(pairs.values()))
            cells = [implementation, figure(first.reference.time_us, "us")]
            for one in found:
                cells += _cells(pairs.get(one.name), several=len(found) > 1, mixed=mixed)
            groups.setdefault(problem, []).append(cells)
    heads = ["implementation", found[0].reference]
    if len(found) > 1:
        heads += [f"{one.name}: ratio" for one in found]
    else:
        heads += [found[0].name, "ratio", "±95 %", f"{found[0].name} is", *(["spread"] if mixed else [])]
    left = frozenset({0, 5, 6} if len(found) == 1 else {0, *range(2, len(heads))})
    return Sheet("\n".join(title), heads, list(groups.items()), notes, left)


def _cells(pair: Pair | None, *, several: bool, mixed: bool) -> list[str]:
    """Return the cells of a pair: one if ``several`` sides stand beside each other; with its source if they differ."""
    from runner.experiment.results import figure, interval

    if pair is None:
        return [""] if several else [""] * (5 if mixed else 4)
    half = interval(100 * math.expm1(pair.ratio.half)) if math.isfinite(pair.ratio.half) else ""
    ratio = f"{math.exp(pair.ratio.log):.3f}"
    source = pair.source if mixed and pair.source != "unknown" else ""
    if several:
        return [" ".join(filter(None, [ratio, half and f"±{half}", pair.word, source and f"({source})"]))]
    return [figure(pair.row.time_us, "us"), ratio, half, pair.word, *([source] if mixed else [])]


def _notes(found: Sequence[Comparison], words: frozenset[str], most_listed: int | None) -> list[str]:
    """Return what the table leaves open: where its intervals are from, what has no conclusion, what is left out."""
    from runner.report.compare import NO_SPREAD

    pairs = [pair for one in found for pair in one.pairs]
    sources = Counter[str](pair.source for pair in pairs)
    apart = [row.metrics.get("separate_pct") for pair in pairs for row in (pair.reference, pair.row)]
    most = f"{max((float(one) for one in apart if one is not None), default=0.0):.1f} %"
    notes = [
        f"spread from {name} ({sources[name]}): {text.format(most)}" for name, text in SOURCES.items() if sources[name]
    ]
    doubts: Cases = {}
    for pair in pairs:
        if pair.source == "unknown":
            remedy = f"; {REMEDY}" if pair.doubt == NO_SPREAD else ""
            doubts.setdefault(f"no conclusion, {pair.doubt}{remedy}", []).append(pair)
    notes += _grouped(doubts, most_listed)
    if pairs:
        notes.append(
            f"ratio: time over that of {found[0].reference}; faster and slower are corrected for {len(pairs)} "
            f"comparison{'s' * (len(pairs) > 1)} (Holm's method); same: shown to be within 1 %"
        )
    reasons: Cases = {}
    for one in found:
        for left in one.left_out:
            reasons.setdefault(f"left out, {left.reason}", []).append(left)
    notes += _grouped(reasons, most_listed)
    counts = Counter[str](pair.word for pair in pairs)
    ended = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "none"
    hidden = sum(count for word, count in counts.items() if word not in words)
    lost = sum(map(len, reasons.values()))
    return [*notes, f"{len(pairs)} compared: {ended}" + f" ({hidden} not shown)" * bool(hidden) + f"; {lost} left out"]


def _grouped(reasons: Cases, most_listed: int | None) -> list[str]:
    """Return a line for each reason, with the cases that it holds for."""
    found = []
    for reason, some in reasons.items():
        names = list(dict.fromkeys(f"{one.problem} {one.implementation}".strip() for one in some))
        more = f" and {len(names) - most_listed} more" if most_listed and names[most_listed:] else ""
        found.append(f"{reason}: {', '.join(names[:most_listed])}{more}")
    return found


def _table(found: Sequence[Comparison], words: frozenset[str], header: Sequence[str], width: int | None) -> Text:
    """Return what is said first, the table and the notes. Sides that do not fit into ``width`` come one by one."""
    from rich.text import Text

    drawn = [_drawn(_sheet(found, words))]
    if width and found[1:] and max(map(len, drawn[0].plain.splitlines())) > width:
        drawn = [_drawn(_sheet([one], words)) for one in found]
    text = Text(no_wrap=True, overflow="ignore")
    text.append(f"{header[0]}\n", style="bold").append("\n".join([*header[1:], "", ""]))
    for table in drawn if any(pair.word in words for one in found for pair in one.pairs) else ():
        text.append(table).append("\n")
    return text.append("\n".join(_notes(found, words, MOST_LISTED)))


def _drawn(sheet: Sheet) -> Text:
    """Return a table with a heading above each group."""
    from rich.cells import cell_len
    from rich.text import Text

    rows = [sheet.heads, *(cells for _, group in sheet.groups for cells in group)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> Text:
        parts = []
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            style = next((style for word, style in STYLES.items() if word in cell.split()), "")
            space = " " * (width - cell_len(cell))
            parts.append(Text(cell + space if place in sheet.left else space + cell, style=style if place else ""))
        text = Text(" ") + Text(GAP).join(parts)
        text.rstrip()
        return text + Text("\n")

    heads = line(sheet.heads)
    heads.stylize("bold")
    text = heads + Text(f" {'─' * (sum(widths) + len(GAP) * (len(widths) - 1))}\n")
    for heading, group in sheet.groups:
        text.append(f" {heading}\n", style="bold cyan")
        for cells in group:
            text.append(line(cells))
    return text


def _records(
    found: Sequence[Comparison], words: frozenset[str], runs: Sequence[Run], by: str | None
) -> list[dict[str, Any]]:
    """Return each pair and each case that is left out as one flat mapping, with the fields of its case."""
    records = []
    for place, one in enumerate(found):
        sides = {"reference": one.reference, "compared": one.name}
        if by is None:
            sides |= {"reference_run": str(runs[0].folder), "compared_run": str(runs[place + 1].folder)}
        for pair in one.pairs:
            if pair.word in words:
                records.append({**_fields(pair.row), **sides, **_figures(pair)})
        for left in one.left_out:
            row = left.reference or left.row
            records.append({**(_fields(row) if row else {}), **sides, "left_out": left.reason})
    return records


def _fields(row: Row) -> dict[str, Any]:
    from runner.report.formats import case_fields

    return {**case_fields(row.case), "seed": row.case.seed, "device": row.device}


def _figures(pair: Pair) -> dict[str, Any]:
    low, high = pair.bounds or (None, None)
    return {
        "problem": pair.problem,
        "implementation": pair.implementation,
        "reference_us": pair.reference.time_us,
        "compared_us": pair.row.time_us,
        "ratio": math.exp(pair.ratio.log),
        "ratio_low": low,
        "ratio_high": high,
        "word": pair.word,
        "spread": pair.source,
        "doubt": pair.doubt,
        "reference_replicas": pair.replicas[0],
        "compared_replicas": pair.replicas[1],
    }

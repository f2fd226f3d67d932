"""A comparison of runs, or of the values of a field, as a table with notes, as text and as flat records."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from ..findings.differences import differences
from ..findings.flat import case_fields
from ..findings.ratios import bounds
from ..findings.run import Run
from ..findings.run_comparison import NO_SPREAD, Pair, RunComparison, TimedPair
from ..records.figures import counted, figure, interval, listed
from ..records.grouping import grouped
from ..records.row import Row
from .table import Mark, Table, draw, rich_text

WORDS = ("faster", "slower", "same", "unclear")
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # names of the runs
MOST_LISTED = 12  # names of cases with one reason on the terminal; other formats have them all
MARKS: Mapping[str, Mark] = {"faster": "good", "slower": "bad", "unclear": "odd"}
SOURCES = {
    "paired rounds": "times and ratio are those of rounds in which both were measured in turn",
    "replicas": "the processes of each side (3 or more) show how much they differ; another day may differ by more",
    "verify": "two times of one call from two processes differ by up to {} (95 %), by the certificate of verify, which "
    "knows the hours at which it was made: measure both with replicas=5 to see how much these cases differ",
}
REMEDIES = {NO_SPREAD: "; measure both with replicas=3, or run python -m runner verify before each"}  # by the doubt


@dataclass(frozen=True)
class ComparisonReport:
    """What to show of ``comparisons``, which have one reference."""

    comparisons: Sequence[RunComparison]
    runs: Sequence[Run]  # the reference first; one, if the values of the field ``by`` are compared
    by: str | None
    words: frozenset[str]  # conclusions of the pairs to show

    def header(self) -> list[str]:
        """Return the title, a line for each run, and what differs between them."""
        reference, names = self.comparisons[0].reference, [each.name for each in self.comparisons]
        if self.by is not None:
            title = f"{', '.join(names)} compared with {reference} ({self.by})"
            return [title, _described(self.runs[0], str(self.runs[0].folder))]
        lines = [f"{listed(names)} compared with A"]
        lines += [_described(run, f"{name}: {run.folder}") for name, run in zip(NAMES, self.runs, strict=False)]
        for name, run in zip(names, self.runs[1:], strict=True):
            differs = [f"  {text}" for text in differences(self.runs[0], run, (reference, name))]
            same = f"{name} and A: machine, versions, sources and settings are the same."
            lines += [f"{name} differs from A in what follows.", *differs] if differs else [same]
        return lines

    def text(self, width: int) -> Text:
        """Return the header, the table and the notes. Sides that do not fit into ``width`` come one by one."""
        drawn = [draw(_table(self.comparisons, self.words))[0]]
        widest = max(len(line) for line in "".join(text for text, _ in drawn[0]).splitlines())
        if widest > width and self.comparisons[1:]:
            drawn = [draw(_table([each], self.words))[0] for each in self.comparisons]
        title, *lines = self.header()
        tables = [part for parts in drawn for part in (*parts, ("\n", ""))] if self._shown() else []
        head = [(f"{title}\n", "bold"), ("\n".join([*lines, "", ""]), "")]
        return rich_text([*head, *tables, ("\n".join(self.notes(MOST_LISTED)), "")])

    def table(self) -> Table:
        """Return the table: the reference's time, and how each other side compares to it."""
        return replace(_table(self.comparisons, self.words), title="\n".join(self.header()), notes=self.notes(None))

    def notes(self, most_listed: int | None) -> list[str]:
        """Return the notes: where intervals are from, which pairs have no conclusion, which cases are left out."""
        pairs = [pair for comparison in self.comparisons for pair in comparison.pairs]
        sources = Counter[str](pair.source for pair in pairs)
        apart = [row.metrics.get("separate_pct") for pair in pairs for row in (pair.reference, pair.row)]
        most = f"{max((float(percent) for percent in apart if percent is not None), default=0.0):.1f} %"
        known = [name for name in SOURCES if sources[name]]
        notes = [f"spread from {name} ({sources[name]}): {SOURCES[name].format(most)}" for name in known]
        unknown = [pair for pair in pairs if pair.source == "unknown"]
        doubts = [(f"no conclusion, {pair.doubt}{REMEDIES.get(pair.doubt, '')}", pair) for pair in unknown]
        notes += _listed(doubts, most_listed)
        if pairs:
            notes.append(
                f"ratio: time over that of {self.comparisons[0].reference}; faster and slower are corrected for "
                f"{counted(len(pairs), 'comparison')} (Holm's method); same: shown to be within 1 %"
            )
            if self.by is None:
                notes.append("times are of cases measured alone; the table of a run shows those of its paired rounds")
        elif any(row.case.of_program for run in self.runs for row in run.rows):
            notes.append("no case is in both runs; runs of bench have cases in common if save() got the same name")
        left_out = [case for comparison in self.comparisons for case in comparison.left_out]
        notes += _listed([(f"left out, {case.doubt}", case) for case in left_out], most_listed)
        counts = Counter[str](pair.word for pair in pairs)
        ended = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "none"
        hidden = f" ({count} not shown)" if (count := len(pairs) - len(self._shown())) else ""
        return [*notes, f"{len(pairs)} compared: {ended}{hidden}; {len(left_out)} left out"]

    def _shown(self) -> list[TimedPair]:
        return [pair for comparison in self.comparisons for pair in comparison.pairs if pair.word in self.words]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each pair and each case that is left out as one flat mapping, with the fields of its case."""
        for place, comparison in enumerate(self.comparisons, 1):
            sides = {"reference": comparison.reference, "compared": comparison.name}
            if self.by is None:
                folders = str(self.runs[0].folder), str(self.runs[place].folder)
                sides |= dict(zip(("reference_run", "compared_run"), folders, strict=True))
            for pair in comparison.pairs:
                if pair.word in self.words:
                    yield {**_fields(pair.row), **sides, **_figures(pair)}
            for case in comparison.left_out:
                row = case.reference or case.row
                yield {**(_fields(row) if row else {}), **sides, "left_out": case.doubt}


def _described(run: Run, name: str) -> str:
    """Return ``name`` with the date, the devices, the commits and the number of cases of a run."""
    started = str(run.environment.get("started", ""))[:16].replace("T", " ")
    commits = f"commit {run.commits}" if run.commits else ""
    return ", ".join(filter(None, [name, started, run.devices, commits, counted(len(run.lines), "case")]))


def _table(comparisons: Sequence[RunComparison], words: frozenset[str]) -> Table:
    """Return a table of the cases of which some pair has one of ``words``, without title and notes."""
    pairs = [(comparison.name, pair) for comparison in comparisons for pair in comparison.pairs]
    mixed = len({pair.source for _, pair in pairs} - {"unknown"}) > 1
    names, several = [comparison.name for comparison in comparisons], len(comparisons) > 1
    groups: dict[str, list[Sequence[str]]] = {}
    for (problem, impl), members in grouped(pairs, lambda item: (item[1].problem, item[1].implementation)).items():
        if any(pair.word in words for _, pair in members):
            by_name = dict(members)
            cells = [_cells(by_name.get(name), several=several, mixed=mixed) for name in names]
            row = [impl, figure(members[0][1].reference.time_us, "us"), *(cell for each in cells for cell in each)]
            groups.setdefault(problem, []).append(row)
    heads = ["implementation", comparisons[0].reference]
    if several:
        heads += [f"{name}: ratio" for name in names]
    else:
        heads += [*names, "ratio", "±95 %", f"{names[0]} is", *(["spread"] if mixed else [])]
    left = frozenset({0, *range(2, len(heads))} if several else {0, 5, 6})
    table = Table("", heads, list(groups.items()), left=left)
    colored = [
        {place: MARKS[word] for place, cell in enumerate(row) if place for word in cell.split() if word in MARKS}
        for row in table.rows
    ]
    return replace(table, marks=dict(enumerate(colored)))


def _cells(pair: TimedPair | None, *, several: bool, mixed: bool) -> list[str]:
    """Return the cells of a pair: one if ``several`` sides stand beside each other; with its source if they differ."""
    if pair is None:
        return [""]
    half = interval(100 * math.expm1(pair.ratio.half)) if math.isfinite(pair.ratio.half) else ""
    ratio = f"{math.exp(pair.ratio.log):.3f}"
    source = pair.source if mixed and pair.source != "unknown" else ""
    if several:
        return [" ".join(filter(None, [ratio, half and f"±{half}", pair.word, source and f"({source})"]))]
    return [figure(pair.row.time_us, "us"), ratio, half, pair.word, *([source] if mixed else [])]


def _listed(cases: Sequence[tuple[str, Pair]], most_listed: int | None) -> Iterator[str]:
    """Yield a line for each reason, with the cases that it holds for."""
    for reason, members in grouped(cases, lambda item: item[0]).items():
        names = list(dict.fromkeys(case.name for _, case in members))
        more = f" and {len(names) - most_listed} more" if most_listed and names[most_listed:] else ""
        yield f"{reason}: {', '.join(names[:most_listed])}{more}"


def _fields(row: Row) -> dict[str, Any]:
    return {**case_fields(row.case), "seed": row.case.settings.seed, "device": row.device}


def _figures(pair: TimedPair) -> dict[str, Any]:
    low, high = bounds(pair.ratio) or (None, None)
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
        "reference_replicas": pair.processes[0],
        "compared_replicas": pair.processes[1],
    }

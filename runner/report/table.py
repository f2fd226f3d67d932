"""Table: heads, groups of rows and notes, with a writer for each format."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..records.plain_text import aligned, cell_width, encodable, printable

if TYPE_CHECKING:
    from rich.text import Text

GAP = "   "
Mark = Literal["best", "good", "bad", "odd", "differs"]
STYLES: Mapping[Mark, str] = {"best": "bold green", "good": "green", "bad": "bold red", "odd": "yellow"}  # for rich
BOLD = ("best", "differs")  # in Markdown and LaTeX


@dataclass(frozen=True)
class Table:
    """A table for people. Columns are known by their places, from 0."""

    title: str  # its first line is the title itself; "" for none
    heads: Sequence[str]  # none for a table of names and values
    groups: Sequence[tuple[str, Sequence[Sequence[str]]]]  # a heading, "" for none, and the rows below it
    notes: Sequence[str] = ()  # one sentence each
    left: frozenset[int] = frozenset()  # columns of words, which are aligned to the left; others have figures
    code: frozenset[int] = frozenset()  # columns of literal text
    names: Sequence[str] = ()  # names of the columns in docs/columns.md; "" for others
    drop: Mapping[int, int] = field(default_factory=dict)  # columns that a narrow terminal leaves out: in which order
    marks: Mapping[int, Mapping[int, Mark]] = field(default_factory=dict)  # by the number of a row, then the column
    rule: bool = True  # a line of text below the heads

    @property
    def rows(self) -> list[Sequence[str]]:
        """The rows of all groups."""
        return [row for _, rows in self.groups for row in rows]

    def sections(self) -> Iterator[tuple[str, list[tuple[Sequence[str], Mapping[int, Mark]]]]]:
        """Yield the heading of each group, and its rows with their marks."""
        begin = 0
        for heading, rows in self.groups:
            yield heading, [(row, self.marks.get(number, {})) for number, row in enumerate(rows, begin)]
            begin += len(rows)


Parts = list[tuple[str, str]]  # parts of a text, each with its style


def draw(table: Table, width: int | None = None) -> tuple[Parts, list[int]]:
    """Return heads and rows as text, and the columns that are left out so that they fit into ``width`` characters.

    A table of rich would take a millisecond per row, too long for ten thousand of them.
    """
    heads = [encodable(head, sys.stdout.encoding) for head in table.heads]
    first, *rows = aligned([heads, *table.rows], table.left)
    widths, dropped = list(map(cell_width, first)), set[int]()
    wanted = 1 + sum(widths) + len(GAP) * (len(widths) - 1)
    for place in sorted(table.drop, key=lambda place: table.drop[place]):
        if width and wanted > width:
            dropped.add(place)
            wanted -= widths[place] + len(GAP)
    kept = [place for place in range(len(heads)) if place not in dropped]
    rule = f" {encodable('─', sys.stdout.encoding) * (wanted - 1)}\n" if table.rule else ""
    parts, drawn = [*_row(first, kept, {}, "bold"), (rule, "")], iter(rows)
    for heading, members in table.sections():
        parts += [(f" {heading}\n", "bold cyan")] if heading else []
        for (_, marks), cells in zip(members, drawn, strict=False):
            parts += _row(cells, kept, marks)
    return parts, sorted(dropped)


def _row(cells: Sequence[str], kept: Sequence[int], marks: Mapping[int, Mark], style: str = "") -> Parts:
    """Return the parts of a line of text, which has the cells at ``kept``; ``style`` is that of the whole line."""
    if not marks:
        return [(f" {GAP.join([cells[place] for place in kept])}".rstrip() + "\n", style)]
    parts, text = list[tuple[str, str]](), " "
    for place in kept:
        if mark := STYLES.get(marks.get(place, "differs")):
            parts += [(text, ""), (cells[place].rstrip() if place == kept[-1] else cells[place], mark)]
            text = ""
        else:
            text += cells[place]
        text += GAP
    return [*parts, (f"{text.rstrip()}\n", "")]


def text_of(table: Table, width: int | None = None) -> str:
    """Return ``table`` as plain text, without columns for which ``width`` has no room."""
    drawn = "".join(part for part, _ in draw(table, width)[0])
    return "\n".join([*([table.title] if table.title else []), drawn, *table.notes, *([""] if table.notes else [])])


def rich_text(parts: Parts) -> Text:
    """Return ``parts`` for a console."""
    from rich.text import Span, Text

    spans, end = [], 0
    for text, style in parts:
        begin, end = end, end + len(text)
        spans += [Span(begin, end, style)] if style else []
    plain = "".join(text for text, _ in parts)
    return Text(plain, spans=spans, no_wrap=True, overflow="ignore")  # to append each part takes ten times as long


def markdown_of(table: Table) -> str:
    """Return ``table`` in GitHub's Markdown, its title and notes as text around it."""
    title, *constants = map(escaped, table.title.splitlines())
    items = [f"- {escaped(' '.join(note.split()))}" for note in table.notes]
    parts = [f"### {title}", *(f"\n{line}" for line in constants), "", *markdown_rows(table), "", *items, ""]
    return "\n".join(parts)


def markdown_rows(table: Table) -> list[str]:
    """Return the lines of ``table`` itself in Markdown; the heading of several groups is their first column."""
    several = len(table.groups) > 1
    sides = ["---" if place in table.left else "---:" for place in range(len(table.heads))]
    lines = [[*(["problem"] if several else []), *map(escaped, table.heads)], [*(["---"] if several else []), *sides]]
    for heading, rows in table.sections():
        for place, (row, marks) in enumerate(rows):
            cells = escaped("\n".join(row)).split("\n")  # at once: a grid has ten thousand rows
            for at in table.code:
                cells[at] = code(row[at])
            for at, mark in marks.items():
                cells[at] = f"**{cells[at]}**" if mark in BOLD and cells[at] else cells[at]
            lines.append([*([escaped(heading) if place == 0 else ""] if several else []), *cells])
    return [f"| {' | '.join(cells)} |" for cells in lines]


# Signs of Markdown; neither the underscores in ``vs_baseline`` nor the # in ``c#x``.
SPECIAL = re.compile(r"[\\`*<>|~\[\]@]|(?<!\w)[_#]|_(?!\w)|#(?=\d)")
BROKEN = {sign: f"{sign}&#8203;" for sign in "@#"}  # these begin a mention and a link, but for a space without width


def escaped(text: str) -> str:
    """Return ``text`` for Markdown: nothing in it is markup, HTML, a mention or a link."""
    return SPECIAL.sub(lambda sign: BROKEN.get(sign[0], f"\\{sign[0]}"), text.replace("&", "&amp;"))


def code(text: str) -> str:
    """Return ``text`` as code of Markdown, which can stand in a table."""
    return f"`{printable(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def html_of(table: Table, attributes: str = "") -> str:
    """Return ``table`` in HTML, with every text escaped. ``attributes`` are those of its element."""

    def cells(tag: str, texts: Sequence[str], marks: Mapping[int, Mark]) -> str:
        scope, others = ("col", "th scope=col") if tag == "th" else ("row", "td")
        words = [f" class={mark}" if (mark := marks.get(place)) else "" for place in range(len(texts))]
        tags = [f"th scope={scope}{LEFT}", *[others] * (len(texts) - 1)]
        return "".join(f"<{tag}{word}>{html.escape(text)}" for tag, word, text in zip(tags, words, texts, strict=True))

    caption, *_ = table.title.splitlines() or [""]
    lines = [f"<table{attributes}>", f"<caption>{html.escape(caption)}</caption>" if caption else ""]
    lines += [f"<thead><tr>{cells('th', table.heads, {})}</thead>" if table.heads else "", "<tbody>"]
    for heading, rows in table.sections():
        lines += [f'<tr><th colspan="{len(table.heads)}">{html.escape(heading)}'] if heading else []
        lines += [f"<tr>{cells('td', row, marks)}" for row, marks in rows]
    return "".join([*lines, "</table>", *(f"<p>{html.escape(note)}</p>" for note in table.notes)])


LEFT = ' style="text-align:left"'  # in a notebook, which has its own style


LATEX = {
    **{sign: f"\\{sign}" for sign in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "★": r"$\star$",
    "≈": r"$\approx$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "µ": r"\textmu{}",
}


def latex_of(table: Table) -> str:
    """Return ``table`` as a ``table`` of LaTeX, which needs the package booktabs."""
    count, several = len(table.heads), len(table.groups) > 1
    sides = "".join("l" if place in table.left else "r" for place in range(count))
    lines = list[str]()
    for place, (heading, rows) in enumerate(table.sections()):
        if several and heading:
            lines += [r"\addlinespace"] if place else []
            lines.append(rf"\multicolumn{{{count}}}{{l}}{{\textbf{{{_tex(heading)}}}}} \\")
        for row, marks in rows:
            bold = {at for at, mark in marks.items() if mark in BOLD}
            cells = [rf"\textbf{{{_tex(cell)}}}" if at in bold else _tex(cell) for at, cell in enumerate(row)]
            lines.append(" & ".join(cells) + r" \\")
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex('. '.join(table.title.splitlines()))}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            " & ".join(map(_tex, table.heads)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_tex(' '.join(note.split()))}" for note in table.notes),
            r"\end{table}",
            "",
        ]
    )


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def facts_table(columns: Sequence[tuple[str, Mapping[str, str]]]) -> Table:
    """Return a table of facts by their names; those that differ between ``columns`` are marked."""
    marks: dict[int, dict[int, Mark]] = {}
    rows = []
    for number, name in enumerate(dict.fromkeys(name for _, facts in columns for name in facts)):
        values = [facts.get(name, "") for _, facts in columns]
        rows.append([name, *values])
        if len(set(values)) > 1:
            marks[number] = dict.fromkeys(range(1, len(rows[-1])), "differs")
    everywhere = frozenset(range(len(columns) + 1))
    return Table("", ["", *(label for label, _ in columns)], [("", rows)], left=everywhere, marks=marks)


WRITERS: Mapping[str, Callable[[Table], str]] = {"table": text_of, "md": markdown_of, "latex": latex_of}

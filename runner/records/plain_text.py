"""Plain text for a terminal, which may lack some signs, and its lines with aligned columns."""

import codecs
from collections.abc import Collection, Sequence
from unicodedata import combining, east_asian_width


def printable(text: str) -> str:
    """Return ``text`` with ``?`` for line breaks, escape codes, and other characters that a terminal does not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


SIGNS = "signs"  # the name of this way to encode text, for ``errors=``
PLAIN = {"★": "*", "≈": "~", "±": "+-", "─": "-", "…": "...", "→": "->", "✓": "+", "✗": "x"}
PLAIN |= {"├": "|", "┤": "|", "●": "o", "○": ".", "◀": "<"}  # marks in a plot


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(SIGNS, _plain)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with plain signs for those that ``encoding`` lacks."""
    return text.encode(encoding or "utf-8", SIGNS).decode(encoding or "utf-8")


def text_table(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return ``rows`` as indented lines of text; columns ``left`` are aligned to the left, the others to the right."""
    return [f"  {'  '.join(cells)}".rstrip() for cells in aligned(rows, left)]


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[tuple[str, ...]]:
    """Return ``rows`` with spaces in their cells, so that each column is as wide as its widest cell."""
    columns = []
    for place, cells in enumerate(zip(*rows, strict=True)):
        widths = list(map(cell_width, cells))
        widest = max(widths)
        spaces = [" " * (widest - width) for width in widths]
        pairs = zip(cells, spaces, strict=True)
        columns.append([cell + space if place in left else space + cell for cell, space in pairs])
    return list(zip(*columns, strict=True))


def shortened(text: str, most: int) -> str:
    """Return ``text``, with an ellipsis in place of what exceeds ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def cell_width(text: str) -> int:
    """Return the width of ``text`` on a terminal, in cells."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)

"""Text for terminals that lack some characters."""

from __future__ import annotations

import codecs


def printable(text: str) -> str:
    """Return ``text`` with ``?`` for line breaks, escape codes, and other characters that a terminal does not show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


SIGNS = "signs"  # the name of this way to encode text, for ``errors=``
PLAIN = {"★": "*", "≈": "~", "±": "+-", "─": "-", "…": "...", "→": "->", "✓": "+", "✗": "x"}
PLAIN |= {"├": "|", "┤": "|", "●": "o", "○": ".", "◀": "<"}  # of a plot


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(SIGNS, _plain)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with plain signs for those that ``encoding`` lacks."""
    return text.encode(encoding or "utf-8", SIGNS).decode(encoding or "utf-8")

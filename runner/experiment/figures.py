"""Figures and signs as people read them: ``31.5 us``, ``4.28 TB/s``, ``>100 %``; ``*`` where a terminal lacks ``★``."""

from __future__ import annotations

import codecs
import math

RISING = (  # units that follow one another in steps of 1000; of 1024 for KiB
    ("us", "ms", "s"),
    ("uJ", "mJ", "J", "kJ"),
    ("mW", "W", "kW"),
    ("kHz", "MHz", "GHz"),
    ("byte", "KiB", "MiB", "GiB", "TiB"),
    ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"),
    ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
    ("flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"),
    ("", "k", "M", "G", "T", "P", "E"),
)
UNITS = {unit: units for units in RISING for unit in units}
ENDS = {"us": "us", "s": "s", "pct": "%", "bytes": "byte", "gbps": "GB/s", "flops": "flop"}  # of names of columns
EXACT = 10**6  # counts below this are shown with all their digits


def figure(value: object, unit: str = "", digits: int = 4) -> str:
    """Return ``value``, which is in ``unit``, in the unit that suits it; "" for None, words as they are.

    Numbers without a unit get a prefix above 1000; small ones, such as errors, none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if not unit and isinstance(value, int) and abs(value) < EXACT:
        return str(value)
    units = UNITS.get(unit, (unit,))
    step, place = 1024 if "KiB" in units else 1000, units.index(unit)
    while place and 0 < abs(value) < 1:
        value, place = value * step, place - 1
    while place < len(units) - 1 and step <= float(f"{abs(value):.{digits}g}") < math.inf:
        value, place = value / step, place + 1
    text = f"{value:.{digits}g}"
    if "e+" in text:  # larger than the largest unit
        text = f"{value:.0f}"
    return f"{text} {'B' if units[place] == 'byte' else units[place]}".rstrip()


def unit_of(column: str) -> str:
    """Return the unit of a column of a measurement's table, which ends its name."""
    return ENDS.get(column.rpartition("_")[2], "")


def interval(percent: object, sign: str = "") -> str:
    """Return half the width of an interval, after ``sign``: ``0.2 %``, ``>100 %``; "" for None."""
    if not isinstance(percent, int | float):
        return ""
    return f"{sign}{percent:.1f} %" if percent <= 100 else ">100 %"


SIGNS = "signs"  # the name of this way to encode text, for ``errors=``
PLAIN = {"★": "*", "≈": "~", "†": "#", "±": "+-", "─": "-", "…": "...", "→": "->", "✓": "+", "✗": "x"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(SIGNS, _plain)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with plain signs for those that ``encoding`` lacks."""
    return text.encode(encoding or "utf-8", SIGNS).decode(encoding or "utf-8")

"""Numbers with units, as people read and write them."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from .bad_input import BadInput

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
ENDS = {"us": "us", "s": "s", "pct": "%", "bytes": "byte", "gbps": "GB/s", "flops": "flop"}  # ends of column names
MOST_SLOWDOWN = 10.0  # the largest share that may be given
EXACT = 10**6  # counts below this are shown with all their digits


def counted(count: object, noun: str) -> str:
    """Return ``count`` with ``noun``, in the plural unless there is one."""
    return f"{count} {noun}{'s' * (count != 1)}"


def figure(value: object, unit: str = "", digits: int = 4) -> str:
    """Return ``value``, which is in ``unit``, in the unit that suits it; "" for None, words as they are.

    Numbers without a unit get a prefix above 1000; small ones, such as errors, none.
    """
    if not is_number(value):
        return "" if value is None else as_typed(value)
    if not unit and isinstance(value, int) and abs(value) < EXACT:
        return str(value)
    units = UNITS.get(unit, (unit,))
    step, place, number = 1024 if "KiB" in units else 1000, units.index(unit), value
    while place and 0 < abs(value) < 1:
        value, place = value * step, place - 1
    while place < len(units) - 1 and step <= float(f"{abs(value):.{digits}g}") < math.inf:
        value, place = value / step, place + 1
    text = f"{value:.{digits}g}"
    if "e+" in text:  # larger than the largest unit
        if not unit and abs(value) >= EXACT:
            return f"{number:.{digits}g}"
        text = f"{value:.0f}"
    return f"{text} {'B' if units[place] == 'byte' else units[place]}".rstrip()


def as_typed(value: Any) -> str:
    """Return ``value`` as it is typed on the command line: ``null``, ``true``, ``[a,b]``."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def as_words(fields: Mapping[str, Any]) -> list[str]:
    """Return ``fields`` with their values as they are typed: ``["rows=8", "tf32=true"]``."""
    return [f"{name}={as_typed(value)}" for name, value in fields.items()]


def unit_of(column: str) -> str:
    """Return the unit of a column of a measurement's table, which ends its name."""
    return ENDS.get(column.rpartition("_")[2], "")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_plausible_us(value: float | None) -> bool:
    """Return whether ``value`` may be a measured time in us: None, zero, or from a femtosecond to a thousand years."""
    return value is None or value == 0 or 1e-9 <= abs(value) < 1e17


def finite(value: object) -> float | None:
    """Return ``value`` as a float; None if it is not a finite number."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def interval(percent: object, sign: str = "") -> str:
    """Return half the width of an interval, after ``sign``: ``0.2 %``, ``>100 %``; "" for None."""
    if not isinstance(percent, int | float):
        return ""
    return f"{sign}{percent:.1f} %" if percent <= 100 else ">100 %"


def times(value: float) -> str:
    """Return a ratio as a sentence has it: ``1.23x``, with three decimals below 1.1."""
    return factor(value, 3 if 0.1 <= value < 1.1 else 2 if value < 100 else 0, smallest=0.1)


def factor(ratio: float | None, decimals: int = 2, smallest: float = 0.01) -> str:
    """Return a ratio with ``decimals``; below ``smallest`` with two significant digits; "" for None."""
    if ratio is None:
        return ""
    small = 0 < ratio < smallest
    return f"{ratio:.{1 - math.floor(math.log10(ratio)) if small else decimals}f}x"


def factors(low: float | None, high: float | None) -> str:
    """Return the interval of a ratio: ``1.290x to 1.310x``; "" if it is not known."""
    return "" if low is None or high is None else f"{factor(low, 3)} to {factor(high, 3)}"


def listed(words: Sequence[str], most: int = sys.maxsize) -> str:
    """Return ``a, b and c``; of more than ``most`` words the first ones, and how many more there are."""
    words = [*words[:most], *([f"{len(words) - most} more"] if len(words) > most else [])]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def parse_share(text: str, name: str) -> float:
    """Return 0.03 for ``3%`` or ``0.03``. Raises BadInput, whose message begins with ``name``."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match and not match[2] and share >= 1:
        raise BadInput(f"{name}{text}: write {text}% or {share / 100:g}")
    if not 0 < share <= MOST_SLOWDOWN:
        raise BadInput(f"{name}{text}: give a share above 0, as in 3% or 0.03")
    return share

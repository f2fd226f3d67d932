"""Parse a share such as 3% or 0.03."""

from __future__ import annotations

import re

from .bad_input import BadInput

MOST_SLOWDOWN = 10.0


def parse_share(text: str, name: str) -> float:
    """Return 0.03 for ``3%`` or ``0.03``. Raises BadInput, whose message begins with ``name``."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match and not match[2] and share >= 1:
        raise BadInput(f"{name}{text}: write {text}% or {share / 100:g}")
    if not 0 < share <= MOST_SLOWDOWN:
        raise BadInput(f"{name}{text}: give a share above 0, as in 3% or 0.03")
    return share

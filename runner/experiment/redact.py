"""What nobody is to read in a row, a log or a report: the values of this machine's keys and tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)  # in the name of what holds one
ASSIGNED = re.compile(rf"(\w*(?:{SECRET.pattern})\w*)=.+", re.IGNORECASE | re.DOTALL)
SHORTEST = 6  # characters: what is shorter stands in too many places by chance
INSTEAD = "<redacted>"


def redact(text: str) -> str:
    """``text`` without the value of any environment variable whose name says that it is secret."""
    for name, value in os.environ.items() if text else ():
        if len(value) >= SHORTEST and SECRET.search(name):
            text = text.replace(value, INSTEAD)
    return text


def kept(text: str, head: int = 4000, tail: int = 16_000) -> str:
    """``text`` as a row keeps it: redacted, and of what is too long the beginning and the end.

    Surrogates, which stand for bytes that were no UTF-8, are escaped: no file takes them.
    """
    text = redact(text).encode(errors="backslashreplace").decode()
    return text if len(text) <= head + tail else f"{text[:head]} [...] {text[-tail:]}"


def redact_command(words: Sequence[str]) -> str:
    """A command line; also without what is given to fields with such names."""
    return redact(" ".join(ASSIGNED.sub(rf"\1={INSTEAD}", word) for word in words))

"""Read what a case, or the author of a run's folder, has written: it may have been made to harm its reader."""

import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

LONGEST = 2**26  # bytes of a record
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # those of them that steer a terminal
# of JSON with such a character, escaped or as it is; it may match other text too
MAY_BE_UNSEEN = re.compile(
    rb"\\[bfr]|\\u(?:00[01789]|20[026])|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\xae]|\xe2\x81[\xa6-\xa9]", re.IGNORECASE
)


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of ``file``. Raises OSError before one that is longer than ``LONGEST``."""
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise OSError(f"a line of it is longer than {LONGEST // 2**20} MiB")
        yield line


def parse(text: bytes) -> Any:
    """Return the JSON value in ``text`` as ``visible`` shows it. Raises ValueError."""
    import orjson  # which bench does without

    value = orjson.loads(text)
    return _visible(value) if MAY_BE_UNSEEN.search(text) else value


def mapping(value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping of names, as a part of JSON should be, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def visible(text: str) -> str:
    """Return ``text`` with escapes for characters that steer a terminal or change the order of others.

    Line breaks and tabs stay.
    """
    return UNSEEN.sub(lambda sign: ascii(sign[0])[1:-1], text)


def _visible(value: Any) -> Any:
    if isinstance(value, dict):
        return {visible(name): _visible(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_visible(item) for item in value]
    return visible(value) if isinstance(value, str) else value

"""Give an attribute or a setting another value for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let ``owner.name`` be ``value`` inside this context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    """Let a setting that two functions read and write be ``value`` inside this context."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)

"""The names of the two forms of GELU."""

from __future__ import annotations


def is_tanh(form: str) -> bool:
    """Return True if ``form`` is "tanh", False if it is "erf". Raise ValueError if it is neither."""
    if form not in ("tanh", "erf"):
        raise ValueError(f"form {form!r}: give tanh or erf")
    return form == "tanh"

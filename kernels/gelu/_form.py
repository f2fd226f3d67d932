"""The two forms of GELU by their names."""

from __future__ import annotations


def is_tanh(form: str) -> bool:
    """Whether ``form`` is "tanh", rather than "erf". Raises ValueError if it is neither."""
    if form not in ("tanh", "erf"):
        raise ValueError(f"form {form!r}: give tanh or erf")
    return form == "tanh"

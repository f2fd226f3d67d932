"""BadInput: a mistake of the user, in one line, with the nearest allowed word."""

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """A mistake of the user. Nothing has been started, and the message is all that is printed: one line."""

    def __str__(self) -> str:
        """Return the message. Newlines and escape codes, as in a key of a YAML file, are escaped."""
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in super().__str__())


ALSO = {"gpu": "cuda", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
ALSO |= {"eager": "torch", "inductor": "compiled"}


def choices(requested: str, allowed: Iterable[str]) -> str:
    """Return ``did you mean mlp? One of: ...``: the nearest of ``allowed``, then all of them."""
    names = sorted(set(allowed))
    plain = {name.lower(): name for name in names}
    word = ALSO.get(requested, requested).lower()
    near = difflib.get_close_matches(word, [name for name in plain if name.lstrip("-").startswith(word)] or plain, 1)
    return (f"did you mean {plain[near[0]]}? One of: " if near else "one of: ") + ", ".join(names)

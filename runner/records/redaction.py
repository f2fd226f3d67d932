"""Remove secrets from text that is stored, shown or uploaded."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

SECRET = re.compile(  # in the name of a variable or a field
    r"key|token|secret|passw|passphrase|credential|bearer|cookie|webhook|database_?url"
    r"|(?<![a-z])(?:pat|pwd|auth|dsn|creds?)(?![a-z])",
    re.IGNORECASE,
)
PLACE = re.compile(r"(?:sock|file|path|dir|home|host|hostname|user|username)$", re.IGNORECASE)  # ends a name: no secret
ASSIGNED = re.compile(rf"(\w*(?:{SECRET.pattern})\w*)=(.+)", re.IGNORECASE | re.DOTALL)
PASSWORD = re.compile(r"(://[^\s/:@]*:)([^\s/]+)(?=@)")  # user:password@ in a URL
TOKEN = re.compile(  # GitHub, Hugging Face, OpenAI and Anthropic, AWS; a JSON Web Token
    r"\b(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]*[A-Za-z0-9]{20,}[\w-]*|A[KS]IA[A-Z0-9]{16}\b|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
BREAK = "\x1e"  # between words; no pattern reaches across it, since it counts as a space
SHORTEST = 6  # characters of a secret: a shorter text occurs by chance
REDACTED = "<redacted>"


def redact(text: str) -> str:
    """Return ``text`` without secrets.

    These are the values of environment variables whose names say so, and each line of such a value; passwords in URLs,
    there and in ``text``; and what looks like a token.
    """
    for secret in _secrets(tuple(os.environ.items())) if text else ():
        text = text.replace(secret, REDACTED)
    return TOKEN.sub(REDACTED, PASSWORD.sub(rf"\1{REDACTED}", text))


@lru_cache(maxsize=1)
def _secrets(environment: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the secrets in ``environment``, the longest first: one may hold another."""
    secrets: set[str] = set()
    for name, value in environment:
        if is_secret(name, value):
            secrets |= {value, *map(str.strip, value.splitlines())}
        secrets.update(password[2] for password in PASSWORD.finditer(value))
    secrets -= {value for name, value in environment if name in ("USER", "LOGNAME", "HOSTNAME")}
    return sorted((secret for secret in secrets if len(secret) >= SHORTEST), key=len, reverse=True)


def is_secret(name: str, value: str) -> bool:
    """Return whether the name of a variable or a field says that ``value`` is secret. A path never is."""
    top = "/" + value[1:].partition("/")[0]
    is_path = value.startswith("/") and top != "/" and os.path.exists(top)  # a key may begin with a slash too
    return bool(SECRET.search(name)) and not PLACE.search(name) and not is_path


def redact_values(value: Any) -> Any:
    """Return plain data without secrets: texts as by ``redact``, and items of a mapping by their names."""
    if isinstance(value, Mapping):
        return {
            name: REDACTED if isinstance(item, str) and is_secret(str(name), item) else redact_values(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_values(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def redact_command(words: Sequence[str]) -> str:
    """Return a command line to paste into a shell, redacted as ``redact`` does, and without fields that are secret."""

    def hidden(assigned: re.Match[str]) -> str:
        return f"{assigned[1]}={REDACTED if is_secret(*assigned.groups()) else assigned[2]}"

    given = (word.replace(BREAK, " ") for word in words)
    plain = (ASSIGNED.sub(hidden, word) if SECRET.search(word) else word for word in given)
    return shlex.join(redact(BREAK.join(plain)).split(BREAK))


def clip(text: str, head: int = 4000, tail: int = 16_000) -> str:
    """Return ``text`` for a row: redacted, and only its beginning and its end if it is long.

    Surrogates, which stand for bytes that are not UTF-8, are escaped, since JSON cannot hold them.
    """
    text = redact(text).encode(errors="backslashreplace").decode()
    return text if len(text) <= head + tail else f"{text[:head]} [...] {text[-tail:]}"

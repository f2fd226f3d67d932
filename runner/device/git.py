"""Ask git about a repository without running what the repository names: hooks, filters, a file-system monitor."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from .processes import output

SCOPES = ("local", "worktree")  # of settings that come with a repository; those of the user and of the system stay
FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"


def git(folder: Path, *words: str) -> str | None:
    """Return what git prints in ``folder``; None if it fails, as without a repository."""
    return output(["git", "--no-optional-locks", "-C", str(folder), *words], variables=harmless(folder))


@cache
def harmless(folder: Path) -> dict[str, str]:
    """Return variables with which git in ``folder`` runs no program that the settings of the repository name."""
    listing = ["config", "--show-scope", "-z", "--name-only", "--get-regexp", FILTERS]
    words = (output(["git", "-C", str(folder), *listing]) or "").split("\0")
    filters = [name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in SCOPES]
    settings = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    settings |= {name: "false" if name.endswith(".required") else "" for name in filters}
    before = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    variables = {"GIT_CONFIG_COUNT": str(before + len(settings))}
    for place, (name, value) in enumerate(settings.items(), before):
        variables |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    return variables

"""Ask git about a repository without running what the repository names: hooks, filters, a file-system monitor."""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")  # set inside a git hook
SCOPES = ("local", "worktree")  # settings that come with a repository; those of the user and of the system stay
FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
LIMIT_S = 20.0  # for an answer


def git(folder: Path, *words: str) -> str | None:
    """Return the output of git in ``folder``; None if it fails or is missing, as without a repository."""
    try:
        answer = run_git(folder, "--no-optional-locks", *words, variables=harmless(folder), limit_s=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def run_git(
    folder: Path, *words: str, variables: Mapping[str, str], limit_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git in ``folder``, whatever repository a hook names. Raises OSError without git, and TimeoutExpired."""
    inherited = {name: value for name, value in os.environ.items() if name not in REPOSITORY}
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=inherited | {"LC_ALL": "C", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_TERMINAL_PROMPT": "0", **variables},
        timeout=limit_s,
        check=False,
    )


@cache
def harmless(folder: Path) -> dict[str, str]:
    """Return variables with which git in ``folder`` runs no program that the settings of the repository name."""
    listing = ["config", "--show-scope", "-z", "--name-only", "--get-regexp", FILTERS]
    words = run_git(folder, *listing, variables={}, limit_s=LIMIT_S).stdout.split("\0")
    filters = [name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in SCOPES]
    settings = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    settings |= {name: "false" if name.endswith(".required") else "" for name in filters}
    before = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    variables = {"GIT_CONFIG_COUNT": str(before + len(settings))}
    for place, (name, value) in enumerate(settings.items(), before):
        variables |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    return variables

"""Git revisions: a name such as ``HEAD~1`` is resolved to a commit, and the files of that commit are kept in a folder.

The folder is ``<cache>/revisions/<commit>``. It holds all files of the commit but very large ones, is written once, and
may be deleted at any time. The user's repository, its index and its working tree are only read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from runner.device.identity import cache_folder
from runner.experiment.case import RECORDED
from runner.experiment.schema import BadInput

LARGEST = 2**22  # bytes of a file that is written: data and models of a repository are left out
SHOWN = 10  # digits of a commit in messages
REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")  # set inside a git hook
ASK = "fetch it with: git fetch --unshallow (actions/checkout: fetch-depth: 0)"


@dataclass(frozen=True)
class Snapshot:
    """Files of a commit, and the working tree of its repository."""

    commit: str
    files: Path
    worktree: Path

    def place(self, path: Path) -> Path:
        """Return where the commit has what is at ``path`` in the working tree, if it has it."""
        return self.files / _real(path).relative_to(self.worktree)


def resolve(rev: str, place: Path) -> str:
    """Return ``rev`` with its commit in the repository of ``place``, as a case records it: ``main@1a2b...``.

    ``rev`` is anything that git takes for a commit, or what this function has returned before.

    Raises:
        BadInput: there is no such revision, no repository, or no git; the message is one line.

    """
    if RECORDED.fullmatch(rev):
        return rev
    worktree = repository(place)
    found = _git(worktree, "rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}")
    if found.returncode:
        raise BadInput(f"impl.rev={rev}: {_unresolved(rev, worktree, found.stderr)}")
    return f"{rev}@{found.stdout.strip()}"


def snapshot(rev: str, place: Path) -> Snapshot:
    """Return the files of ``rev``, as ``resolve`` returns it, in the repository of ``place``. Write them if needed.

    Raises BadInput if git does not have the commit any more, or the files cannot be written.
    """
    match = RECORDED.fullmatch(rev)
    if match is None:
        raise BadInput(f"impl.rev={rev}: not resolved to a commit yet")
    return _snapshot(match[2], repository(place))


def shown(rev: str) -> str:
    """Return a recorded revision as messages name it: ``main (1a2b3c4d5e)``."""
    match = RECORDED.fullmatch(rev)
    return f"{match[1]} ({match[2][:SHOWN]})" if match else rev


def repository(place: Path) -> Path:
    """Return the working tree that ``place``, which need not exist, lies in. Raises BadInput if there is none."""
    real = _real(place)
    found = next((folder for folder in (real, *real.parents) if (folder / ".git").exists()), None)
    if found is None:
        raise BadInput(f"impl.rev: {place} is not in a git repository; leave impl.rev out, or commit the file to one")
    return found


@cache
def _snapshot(commit: str, worktree: Path) -> Snapshot:
    files = cache_folder("revisions") / commit
    if not files.is_dir():
        try:
            _write(commit, worktree, files)
        except OSError as error:
            why = error.strerror or error
            raise BadInput(
                f"impl.rev: cannot write {files}: {why}; set XDG_CACHE_HOME to a folder that can be written"
            ) from None
    status = files.parent.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:  # its files are run
        raise BadInput(f"impl.rev: others can write to {files.parent}; set XDG_CACHE_HOME to a folder of your own")
    return Snapshot(commit, files, worktree)


def _write(commit: str, worktree: Path, files: Path) -> None:
    """Write the files of ``commit`` to the folder ``files``, whole or not at all. Raises OSError, BadInput."""
    files.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".", dir=files.parent))
    try:
        index = {"GIT_INDEX_FILE": str(scratch / "index")}  # the user's own stays as it is
        if _git(worktree, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise BadInput(f"impl.rev: {worktree} has no commit {commit[:SHOWN]} any more; {ASK}, or by its branch")
        _done(worktree, "read-tree", commit, environment=index)
        paths = _paths(_done(worktree, "ls-tree", "-r", "-l", "-z", "--full-tree", commit))
        whole = scratch / "files"
        whole.mkdir()
        arguments = ("checkout-index", "-f", "-q", "-z", "--stdin", f"--prefix={whole}/")
        _done(worktree, *arguments, environment=index, text="".join(f"{path}\0" for path in paths))
        if not files.is_dir():  # another process may have been as fast
            whole.rename(files)
    except OSError:
        if not files.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _paths(listing: str) -> list[str]:
    """Return the files of ``git ls-tree -l -z`` that are to be written: no submodules, and none above ``LARGEST``."""
    found = []
    for line in filter(None, listing.split("\0")):
        head, _, path = line.partition("\t")
        size = head.split()[-1]
        if size.isdecimal() and int(size) <= LARGEST:
            found.append(path)
    return found


def _unresolved(rev: str, worktree: Path, stderr: str) -> str:
    """Return why git does not resolve ``rev``, and what to do."""
    if "ambiguous" in stderr:
        return "several objects begin like this; give more digits"
    if "dubious ownership" in stderr:
        return f"{worktree} belongs to another user; allow it: git config --global --add safe.directory {worktree}"
    if _git(worktree, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return f"{worktree} is a shallow clone without this revision; {ASK}"
    names = ["HEAD", *_git(worktree, "for-each-ref", "--format=%(refname:short)").stdout.split()]
    near = get_close_matches(rev, names, 1)
    meant = f"did you mean {near[0]}, or is it new on a remote? Then" if near else "if it is new on a remote,"
    return f"no such revision in {worktree}; {meant} run git fetch first"


def _done(worktree: Path, *words: str, environment: Mapping[str, str] | None = None, text: str = "") -> str:
    """Return what git prints. Raises BadInput if it fails."""
    found = _git(worktree, *words, environment=environment, text=text)
    if found.returncode:
        lines = found.stderr.strip().splitlines() or ["failed"]
        raise BadInput(f"impl.rev: git {words[0]} in {worktree}: {re.sub('^(fatal|error): ', '', lines[0])}")
    return found.stdout


def _git(
    worktree: Path, *words: str, environment: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run git in ``worktree``. Raises BadInput if there is no git."""
    inherited = {name: value for name, value in os.environ.items() if name not in REPOSITORY}
    settings = {"LC_ALL": "C", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_TERMINAL_PROMPT": "0", **(environment or {})}
    command = ["git", "-C", str(worktree), "-c", "core.sparseCheckout=false", *words]
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env=inherited | settings,
            check=False,
        )
    except FileNotFoundError:
        raise BadInput("impl.rev: needs git, which is not installed") from None


def _real(path: Path) -> Path:
    """Return ``path`` in full, its folders without links."""
    whole = Path(os.path.abspath(path))
    return whole.parent.resolve() / whole.name

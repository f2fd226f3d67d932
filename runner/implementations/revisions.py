"""Git revisions: resolve a name such as ``HEAD~1`` to a commit, and keep the files of that commit in a folder.

The folder ``<cache>/revisions/<commit>`` holds the files of the commit. It is written once, and may be deleted at any
time. The user's repository, its index and its working tree are only read, and no hook or filter that it names is run.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ..device.cache import cache_folder
from ..device.git import harmless, run_git
from ..device.used_paths import is_equal
from ..records.bad_input import BadInput
from ..records.case import RECORDED

SUBMODULE = "160000"  # mode of its entry in a commit
COMMIT = re.compile(r"[0-9a-f]{40,64}")
SHOWN = 10  # digits of a commit in messages
ASK = "fetch it with: git fetch --unshallow (actions/checkout: fetch-depth: 0)"


@dataclass(frozen=True)
class Snapshot:
    """Files of a commit, and the working tree of its repository."""

    files: Path
    worktree: Path

    def place(self, path: Path) -> Path:
        """Return the path of the commit's version of ``path`` in the working tree. It need not exist.

        A link in its folders leads where it leads in the commit, unless that is outside of the commit's files.
        """
        whole = Path(os.path.abspath(path))
        if whole.is_relative_to(self.worktree):
            place = self.files / whole.relative_to(self.worktree)
            if place.resolve().is_relative_to(self.files.resolve()):
                return place
        return self.files / real_path(path).relative_to(self.worktree)

    def differs(self, path: str) -> bool:
        """Return whether what a case has used at ``path`` is not the same in the commit. It may lie elsewhere."""
        if not real_path(Path(path)).is_relative_to(self.worktree):
            return False
        return not is_equal(path, f"{self.place(Path(path))}{'/' * path.endswith('/')}")


def resolve(rev: str, place: Path) -> str:
    """Return ``rev`` with its commit in the repository of ``place``, as a case records it: ``main@1a2b...``.

    ``rev`` is what git accepts as a commit, or a result of this function. Raises BadInput if git does not know it.
    """
    if RECORDED.fullmatch(rev):
        return rev
    worktree = repository(place)
    answer = _git(worktree, "rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}")
    if answer.returncode:
        raise BadInput(f"impl.rev={rev}: {_unresolved(rev, worktree, answer.stderr)}")
    if not COMMIT.fullmatch(commit := answer.stdout.strip()):  # ^HEAD and HEAD~2..HEAD are sets of commits
        raise BadInput(f"impl.rev={rev}: not one commit; give a commit, a branch or a tag, as in HEAD~1")
    return f"{rev}@{commit}"


def snapshot(rev: str, place: Path) -> Snapshot:
    """Return the files of ``rev``, a result of ``resolve``, in the repository of ``place``. Write them if needed.

    Raises BadInput if git no longer has the commit, or if the files cannot be written.
    """
    if (match := RECORDED.fullmatch(rev)) is None:
        raise BadInput(f"impl.rev={rev}: not resolved to a commit yet")
    return _snapshot(match[2], repository(place))


def located(path: Path | str, rev: str | None) -> str:
    """Return ``path`` for messages, with its recorded revision: ``k.py in main (1a2b3c4d5e)``."""
    match = RECORDED.fullmatch(rev or "")
    return f"{path} in {match[1]} ({match[2][:SHOWN]})" if match else str(path)


def repository(place: Path) -> Path:
    """Return the working tree around ``place``, which need not exist. Raises BadInput if there is none."""
    real = real_path(place)
    worktree = next((folder for folder in (real, *real.parents) if (folder / ".git").exists()), None)
    if worktree is None:
        raise BadInput(f"impl.rev: {place} is not in a git repository; leave impl.rev out, or commit the file to one")
    return worktree


@cache
def _snapshot(commit: str, worktree: Path) -> Snapshot:
    files = cache_folder("revisions") / commit
    if not files.is_dir():
        try:
            _write(commit, worktree, files)
        except OSError as error:
            reason = error.strerror or error
            raise BadInput(
                f"impl.rev: cannot write {files}: {reason}; set XDG_CACHE_HOME to a folder that can be written"
            ) from None
    status = files.parent.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:  # its files are run
        raise BadInput(f"impl.rev: others can write to {files.parent}; set XDG_CACHE_HOME to a folder of your own")
    return Snapshot(files, worktree)


def _write(commit: str, worktree: Path, files: Path) -> None:
    """Write the files of ``commit`` to the folder ``files``, whole or not at all. Raises OSError, BadInput."""
    files.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=files.parent, ignore_cleanup_errors=True) as scratch:
            index = {"GIT_INDEX_FILE": f"{scratch}/index"}  # the user's index stays as it is
            if _git(worktree, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
                raise BadInput(f"impl.rev: {worktree} has no commit {commit[:SHOWN]} any more; {ASK}, or by its branch")
            _done(worktree, "read-tree", commit, environment=index)
            whole = Path(scratch, "files")
            whole.mkdir()
            _done(worktree, "checkout-index", "-a", "-f", "-q", f"--prefix={whole}/", environment=index)
            lines = _done(worktree, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
            for head, _, path in (line.partition("\t") for line in lines):
                if head.startswith(SUBMODULE) and (worktree / path / ".git").exists():
                    with suppress(BadInput):  # it lacks the commit: what reads it says that it is missing
                        _write(head.split()[2], worktree / path, whole / path)
            whole.rename(files)
    except OSError:
        if not files.is_dir():  # another process may have written it
            raise


def _unresolved(rev: str, worktree: Path, stderr: str) -> str:
    """Return the reason why git does not resolve ``rev``, and what to do."""
    if "dubious ownership" in stderr:
        return f"{worktree} belongs to another user; allow it: git config --global --add safe.directory {worktree}"
    if _git(worktree, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return f"{worktree} is a shallow clone without this revision; {ASK}"
    head = [] if _git(worktree, "rev-parse", "--verify", "HEAD").returncode else ["HEAD"]
    names = [*head, *_git(worktree, "for-each-ref", "--format=%(refname:short)").stdout.split()]
    if not names:
        return f"{worktree} has no commit yet; commit the files that are to be compared"
    near = get_close_matches(rev, names, 1)
    meant = f"did you mean {near[0]}, or is it new on a remote? Then" if near else "if it is new on a remote,"
    return f"no such revision in {worktree}; {meant} run git fetch first"


def _done(worktree: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of git. Raises BadInput if it fails."""
    answer = _git(worktree, *words, environment=environment)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or ["failed"]
        raise BadInput(f"impl.rev: git {words[0]} in {worktree}: {re.sub('^(fatal|error): ', '', lines[0])}")
    return answer.stdout


def _git(worktree: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run git in ``worktree``. Raises BadInput if there is no git."""
    try:
        variables = {**(environment or {}), **harmless(worktree)}
        return run_git(worktree, "-c", "core.sparseCheckout=false", *words, variables=variables)
    except FileNotFoundError:
        raise BadInput("impl.rev: needs git, which is not installed") from None


def real_path(path: Path) -> Path:
    """Return the absolute path, with links resolved in its folders."""
    whole = Path(os.path.abspath(path))
    return whole.parent.resolve() / whole.name

"""Where code comes from: its repository, its commit, and whether its files differ from it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..device.git import git
from ..records.case import Scalar
from ..records.redaction import redact

SHORT = 8  # digits of a commit for people
USER = re.compile(r"(?<=://)[^/@]*@")  # in the URL of a remote: no part of the repository's name


@dataclass(frozen=True)
class _Repository:
    name: str  # the URL of its remote, else its folder
    commit: str  # "" before the first commit
    tracked: frozenset[str]  # paths of the files in the commit, from the top
    changed: frozenset[str]  # tracked files that differ from the commit


class Repositories:
    """What git says about files. Each repository is asked once, at the first of its files."""

    def __init__(self) -> None:
        self._top, self._repository, self._known = cache(_top), cache(_ask), cache(self._provenance)

    def provenance(self, files: Sequence[Path], used: Sequence[str] = ()) -> dict[str, Scalar]:
        """Return ``repository``, ``commit`` and ``dirty`` of the first of ``files``, which may import the others.

        ``dirty`` says whether one of them, or of the paths ``used``, that is in the same repository differs from the
        commit, or is not in it. Return {} if the first file is missing, in no repository, or ignored by it, or there is
        no git.
        """
        return self._known(tuple(files), tuple(used))

    def _provenance(self, files: tuple[Path, ...], used: tuple[str, ...]) -> dict[str, Scalar]:
        paths = [path.resolve() for path in files]  # git follows no link
        top = self._top(paths[0].parent) if paths[0].is_file() else None
        if top is None:
            return {}
        repository = self._repository(top)
        paths += [Path(path).resolve() for path in used if not path.endswith("/")]
        names = [path.relative_to(top).as_posix() for path in paths if path.is_relative_to(top)]
        untracked = [name for name in names if name not in repository.tracked and (top / name).exists()]
        if names[0] in untracked and git(top, "check-ignore", names[0]) is not None:
            return {}  # an installed package in a repository's own environment
        dirty = bool(untracked) or not repository.changed.isdisjoint(names)
        return {"repository": repository.name, "commit": repository.commit, "dirty": dirty}

    def of_revision(self, place: Path, commit: str) -> dict[str, Scalar]:
        """Return the same for a file of ``commit``, a git revision, in the repository of ``place``."""
        top = self._top(next(folder for folder in place.resolve().parents if folder.is_dir()))
        return {"repository": self._repository(top).name, "commit": commit, "dirty": False} if top else {}


def _top(folder: Path) -> Path | None:
    """Return the top of the repository around ``folder``; None if it is in none."""
    found = git(folder, "rev-parse", "--show-toplevel")
    return Path(found.rstrip("\n")) if found else None


def _ask(top: Path) -> _Repository:
    commit = (git(top, "rev-parse", "--verify", "HEAD") or "").strip()
    remotes = (git(top, "config", "--get-regexp", r"^remote\..*\.url$") or "").splitlines()
    urls = {name: url for name, _, url in (line.partition(" ") for line in remotes)}
    url = urls.get("remote.origin.url") or next(iter(urls.values()), "")
    names = ("-z", "--name-only", "HEAD")
    committed = git(top, "ls-tree", "-r", *names) if commit else ""
    changed = git(top, "diff", "--no-renames", "--ignore-submodules=dirty", *names) if commit else ""
    return _Repository(
        redact(USER.sub("", url)) or str(top),
        commit,
        frozenset((committed or "").split("\0")),
        frozenset((changed or "").split("\0")),
    )


def commits(rows: Iterable[Mapping[str, object]]) -> str:
    """Return the commits in the metrics of ``rows`` for people: ``1a2b3c4d, 5e6f7a8b*``; "" if none is known.

    ``*`` marks one from which a row's files differed. Where there are several repositories, their names come first.
    """
    found: dict[tuple[str, str], bool] = {}
    for row in rows:
        if (commit := row.get("commit")) and isinstance(commit, str):
            key = str(row.get("repository") or ""), commit
            found[key] = found.get(key, False) or row.get("dirty") is True
    several = len({repository for repository, _ in found}) > 1
    names = {repository: f"{Path(repository).name.removesuffix('.git')} " for repository, _ in found if several}
    return ", ".join(
        f"{names.get(repository, '')}{commit[:SHORT]}{'*' * dirty}" for (repository, commit), dirty in found.items()
    )

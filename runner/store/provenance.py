"""Where code comes from: its repository, its commit, and whether its files differ from it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..device.git import git
from ..device.used_paths import repository
from ..records.case import Scalar
from ..records.redaction import redact

SHORT = 8  # digits of a commit for people
USER = re.compile(r"(?<=://)[^/@]*@")  # in the URL of a remote: no part of the repository's name
STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=no")
FIELDS = {"1": 8, "u": 10}  # of a line about a changed file, by its kind: fields before the path


@dataclass(frozen=True)
class _Repository:
    name: str  # the URL of its remote, else its folder
    commit: str  # "" before the first commit
    tracked: frozenset[str]  # paths of the files in the index, from the top
    changed: frozenset[str]  # files of the index or of the commit that differ from the commit


class Repositories:
    """What git says about files. Each repository is asked once, at the first of its files."""

    def __init__(self) -> None:
        self._ask, self._known = cache(_ask), cache(self._provenance)

    def state(self, folder: Path) -> tuple[str, bool] | None:
        """Return the commit around ``folder``, and whether tracked files differ from it; None without a commit."""
        known = self._ask(repository(str(folder)))
        return (known.commit, bool(known.changed)) if known and known.commit else None

    def provenance(self, files: Sequence[Path], used: Sequence[str] = ()) -> dict[str, Scalar]:
        """Return ``repository``, ``commit`` and ``dirty`` of the first of ``files``, which may import the others.

        ``dirty`` says whether one of them, or of the paths ``used``, that is in the same repository differs from the
        commit, or is not in it. Return {} if the first file is missing, ignored or in no repository, or git is missing.
        """
        return self._known(tuple(files), tuple(used))

    def _provenance(self, files: tuple[Path, ...], used: tuple[str, ...]) -> dict[str, Scalar]:
        paths = [path.resolve() for path in files]  # git follows no link
        top = repository(str(paths[0].parent))
        known = self._ask(top) if paths[0].is_file() else None
        if known is None:
            return {}
        paths += [Path(path).resolve() for path in used if not path.endswith("/")]
        names = [path.relative_to(top).as_posix() for path in paths if path.is_relative_to(top)]
        untracked = [name for name in names if name not in known.tracked and (top / name).exists()]
        if names[0] in untracked and git(top, "check-ignore", names[0]) is not None:
            return {}  # an installed package in a repository's own environment
        dirty = bool(untracked) or not known.changed.isdisjoint(names)
        return {"repository": known.name, "commit": known.commit, "dirty": dirty}

    def of_revision(self, place: Path, commit: str) -> dict[str, Scalar]:
        """Return the same for a file of ``commit``, a git revision, in the repository of ``place``."""
        known = self._ask(repository(str(place.resolve().parent)))
        return {"repository": known.name, "commit": commit, "dirty": False} if known else {}


def _ask(top: Path) -> _Repository | None:
    """Return what git says about the repository of the folder ``top``; None if there is none."""
    if (status := git(top, *STATUS, "--ignore-submodules=dirty")) is None:
        return None
    head, *lines = status.split("\0")
    commit = head.removeprefix("# branch.oid ").replace("(initial)", "")
    changed = frozenset(line.split(" ", FIELDS[line[0]])[-1] for line in lines if line[:1] in FIELDS)
    remotes = (git(top, "config", "--get-regexp", r"^remote\..*\.url$") or "").splitlines()
    urls = {name: url for name, _, url in (line.partition(" ") for line in remotes)}
    url = urls.get("remote.origin.url") or next(iter(urls.values()), "")
    tracked = frozenset((git(top, "ls-files", "-z") or "").split("\0"))
    return _Repository(redact(USER.sub("", url)) or str(top), commit, tracked, changed)


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

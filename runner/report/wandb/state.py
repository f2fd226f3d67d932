"""What W&B has of a run: its names there, and wandb.json in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from ...device.files import no_link, replace_file
from ...records import untrusted
from ...records.schema import UNREADABLE

STATE = "wandb.json"
REFUSED = "/\\#?%:"  # W&B takes none of these in a project's name
# Most characters; a name is that of a run, group or job type, a title that of a report.
PROJECT_LENGTH, NAME_LENGTH, TITLE_LENGTH, TAG_LENGTH = 128, 128, 128, 64


def group_of(folder: Path, group: str | None) -> str:
    """Return the group of the runs of single cases: ``group`` if the user gives it, else ``<date>/<time>-<name>``."""
    return group or "/".join(folder.resolve().parts[-2:])[-NAME_LENGTH:]


@dataclass(frozen=True)
class Address:
    """Where a run is on a server."""

    entity: str
    project: str
    id: str
    url: str

    @classmethod
    def of(cls, url: str) -> Self | None:
        """Return the address in ``https://server/entity/project/runs/id``; None if ``url`` is none."""
        parts = url.rstrip("/").split("/")
        if len(parts) < 7 or parts[-2] != "runs":
            return None
        return cls(unquote(parts[-4]), unquote(parts[-3]), unquote(parts[-1]), url)


@dataclass(frozen=True)
class State:
    """What ``wandb.json`` holds: what the recorder has written, and the address after an upload."""

    recorded: tuple[str, ...] = ()  # folders that W&B recorded in, relative to that of ``wandb.json``
    refused: str = ""  # why the latest session recorded nothing
    why: str = ""  # why what is recorded cannot be uploaded
    url: str = ""  # address of the uploaded run, or of the group if each case is a run
    journal_bytes: int = 0  # size of the journal that was recorded
    step: int = 0  # the next step: a resumed sweep goes on there
    sent: tuple[str, ...] = ()  # digests of the records of the history so far, in all sessions

    def uploaded(self, folder: Path) -> bool:
        """Return whether what was recorded in ``folder`` is on a server."""
        return bool(self.recorded) and all(any((folder / name).glob("*.wandb.synced")) for name in self.recorded)


def read_state(folder: Path) -> State:
    """Return the state in ``wandb.json`` in ``folder``; an empty one if that file is missing or cannot be read."""
    try:
        with open(folder / STATE, "rb", opener=no_link) as file:
            record = untrusted.parse(next(untrusted.lines(file)))
        known = {name: record[name] for name in State.__dataclass_fields__ if name in record}
        return State(**known | {name: tuple(known.get(name) or ()) for name in ("recorded", "sent")})
    except (OSError, *UNREADABLE):
        return State()


def write_state(folder: Path, state: State) -> None:
    """Write ``wandb.json``. Raises OSError."""
    replace_file(folder / STATE, json.dumps(asdict(state)).encode() + b"\n")

"""``log=wandb``: Weights & Biases, one run per sweep, or one per case.

Two child processes do the work, after the last timing: ``runner.report.wandb_record`` records the finished run offline,
where no server can disturb it, and ``wandb sync`` uploads it. Nothing of W&B is imported in this process. Without an
API key nothing is recorded, unless the user asks for an offline run.
"""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Literal
from urllib.parse import quote, unquote

from runner.device import processes
from runner.experiment.schema import UNREADABLE

REFUSED = "/\\#?%:"  # W&B takes none of these in a project's name
PROJECT_LENGTH = 128
NAME_LENGTH = 128  # of a run, a group and a job type
TAG_LENGTH = 64
STATE = "wandb.json"  # what W&B has of the run: see State
LOG = "wandb.log"
MARGIN_S = 15.0  # beyond timeout_s, to record on a slow disk
LOCAL = "wandb-local"  # replaces W&B's folders in the home directory; a later ``wandb sync`` reads from it
NO_KEY = "no API key"
MOST_PATHS = 3  # named one by one in the command that uploads them
URL = re.compile(r"https?://\S+/runs/\S+")
REQUEST = re.compile(r'^\w+ "\S+": ')  # precedes some errors of wandb-core
ANSWERED = re.compile(r'"message":("(?:[^"\\]|\\.)*")')  # the server's words in a JSON answer
SIGNATURE = re.compile(r"\?\S+")  # the query of an address
GIVEN_UP = re.compile("giving up|failed to log|failed to upload|fatal error")


@dataclass(frozen=True)
class Address:
    """Where a run is on a server."""

    entity: str
    project: str
    id: str
    url: str

    @classmethod
    def of(cls, url: str) -> Address | None:
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
    url: str = ""  # of the uploaded run; of the group, with a run per case
    journal_bytes: int = 0  # size of the journal that was recorded
    step: int = 0  # the next step: a resumed sweep goes on there
    sent: tuple[str, ...] = ()  # digests of the records of the history so far, in all sessions

    def uploaded(self, folder: Path) -> bool:
        """Return whether what was recorded in ``folder`` is on a server."""
        return bool(self.recorded) and all(any((folder / one).glob("*.wandb.synced")) for one in self.recorded)


def state(folder: Path) -> State:
    """Return what ``wandb.json`` in ``folder`` says; an empty state if there is none, or it cannot be read."""
    try:
        with open(folder / STATE, "rb", opener=_no_link) as file:
            found = json.load(file)
        known = {name: found[name] for name in State.__dataclass_fields__ if name in found}
        return State(**known | {name: tuple(known.get(name) or ()) for name in ("recorded", "sent")})
    except (OSError, *UNREADABLE):
        return State()


def keep(folder: Path, what: State) -> None:
    """Write ``wandb.json``. Raises OSError."""
    new = folder / f"{STATE}.new"
    new.write_text(json.dumps(asdict(what)) + "\n", encoding="utf-8")
    new.replace(folder / STATE)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)


@dataclass(frozen=True)
class Wandb:
    """Report a run to Weights & Biases. Fields are those of conf/log/wandb.yaml."""

    project: str
    entity: str | None
    group: str | None
    per: Literal["sweep", "case"]
    job_type: str | None
    tags: tuple[str, ...]
    notes: str | None
    mode: Literal["auto", "online", "offline"]
    timeout_s: Annotated[float, "above 0"]

    def __post_init__(self) -> None:
        if not 0 < len(self.project) <= PROJECT_LENGTH or set(self.project) & set(REFUSED):
            allowed = f"1 to {PROJECT_LENGTH} characters without any of {' '.join(REFUSED)}"
            raise ValueError(f"project: {self.project!r} is not allowed; give {allowed}")
        for tag in self.tags:
            if not 0 < len(tag) <= TAG_LENGTH:
                raise ValueError(f"tags: {tag!r} is not allowed; give 1 to {TAG_LENGTH} characters each")
        for name in ("group", "job_type"):
            if len(getattr(self, name) or "") > NAME_LENGTH:
                raise ValueError(f"{name}: longer than {NAME_LENGTH} characters")

    def publish(self, folder: Path) -> list[str]:
        """Record the run in ``folder``, and upload it unless the user wants otherwise. Raise nothing."""
        if os.environ.get("WANDB_MODE") == "disabled" and self.mode == "auto":
            return ["W&B: off (WANDB_MODE=disabled)"]
        shown = shlex.quote(str(folder))
        try:
            found, why = self.send(folder, folder)
        except Exception as error:  # a failure of W&B must not change the exit code of a run
            found, why = State(), f"{type(error).__name__}: {error}"
        if why == NO_KEY:
            share = f"to share this run: wandb login, then python -m runner report wandb {shown}"
            return [f"W&B: not logged ({NO_KEY}); {share}"]
        if not found.recorded:
            return [f"W&B: not logged ({why}); the results are in {shown}"]
        if why:
            return [f"W&B: kept offline ({why}); to upload: wandb sync {_paths(folder, found.recorded)}"]
        several = f"{len(found.recorded)} runs in a group: " if found.recorded[1:] else ""
        return [f"W&B: {several}{found.url}"]

    def send(self, folder: Path, into: Path) -> tuple[State, str]:
        """Record the run in ``folder`` and upload it. Return what was done, and why it was not uploaded or "".

        W&B's files go ``into`` a folder, which is that of the run or another. Raises OSError.
        """
        deadline, offline = time.monotonic() + self.timeout_s, self.offline()
        if not (offline or may_have_key()):
            return State(), NO_KEY
        into = into.resolve()
        variables = environment(into, self.timeout_s)
        found, why = self._record(folder.resolve(), into, variables, offline)
        if not found.recorded or (why := offline or why):
            return found, why  # not recorded, and no reason: the server has the run already
        if found.uploaded(into):  # there is nothing new
            return found, ""
        late = f"not uploaded within log.wandb.timeout_s={self.timeout_s:g}"
        paths = [into / one for one in found.recorded]
        url, why = _sync(into, paths, variables, deadline - time.monotonic(), late)
        if not why:
            found = State(**vars(found) | {"url": _group(url, folder, self) if self.per == "case" else url})
            keep(into, found)
        return found, why

    def _record(self, folder: Path, into: Path, variables: Mapping[str, str], offline: str) -> tuple[State, str]:
        """Return what was recorded, if anything, and why it cannot be uploaded, or was not recorded, or ""."""
        module = ["runner.report.wandb_record", str(folder), str(into), json.dumps(asdict(self)), offline]
        silent = {"WANDB_SILENT": "true"}  # otherwise wandb.login() asks the server for the user's name
        limit_s = self.timeout_s + MARGIN_S
        with open(into / LOG, "wb") as log:
            code, stopped = run(module, log, {**variables, **silent}, limit_s, f"not done within {limit_s:g} s")
        if stopped or code:
            return State(), stopped or f"it ended with code {code}, see {LOG}"
        found = state(into)
        return (State(), found.refused) if found.refused else (found, found.why)

    def offline(self) -> str:
        """Return which setting forbids the upload; "" if none does."""
        if self.mode == "offline":
            return "log.wandb.mode=offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled"):
            return f"WANDB_MODE={os.environ['WANDB_MODE']}"
        return ""


def may_have_key() -> bool:
    """Return whether there may be an API key. Only the client knows of which server; it is asked in a child process."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    named = os.environ.get("NETRC")
    for path in (named,) if named else ("~/.netrc", "~/_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            return bool(netrc.netrc(os.path.expanduser(path)).hosts)
    return False


def _paths(folder: Path, recorded: Sequence[str]) -> str:
    """Return the paths for ``wandb sync``."""
    if len(recorded) > MOST_PATHS:
        return f"{shlex.quote(str(folder / 'wandb'))}/offline-run-*"
    return shlex.join(str(folder / one) for one in recorded)


def group_of(folder: Path, asked: str | None) -> str:
    """Return the group of the runs of single cases: the one that is ``asked`` for, else ``<date>/<time>-<name>``."""
    return asked or "/".join(folder.resolve().parts[-2:])[-NAME_LENGTH:]


def _group(url: str, folder: Path, settings: Wandb) -> str:
    """Return the address of the group whose first run is at ``url``."""
    return f"{url.rpartition('/runs/')[0]}/groups/{quote(group_of(folder, settings.group), safe='')}"


def run(
    module: list[str], output: IO[bytes], environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[int, str]:
    """Run ``python -m <module>`` to its end or kill it. Return its exit code and why it was killed, ``late`` or "".

    Raises:
        OSError: it cannot be started.

    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *module],
        stdin=subprocess.DEVNULL,  # on a terminal, the client would ask for a key and wait forever
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.wait(max(0.0, limit_s)), ""
    except subprocess.TimeoutExpired:
        return -1, late
    except KeyboardInterrupt:  # the user does not want to wait; the results are complete
        return -1, "interrupted"
    finally:
        processes.kill_group(process)  # W&B's core has a group of its own, and ends with its parent


def _sync(
    folder: Path, recorded: Sequence[Path], environment: Mapping[str, str], limit_s: float, late: str
) -> tuple[str, str]:
    """Upload recorded runs. Return the address of the first, and why the upload failed or "".

    ``wandb sync`` exits with 0 and marks the run as synced even if the server refused parts of it.
    """
    logs = folder / "wandb" / "logs"
    try:
        with tempfile.TemporaryFile(dir=folder) as output:
            _, stopped = run(["wandb", "sync", *map(str, recorded)], output, environment, limit_s, late)
            output.seek(0)
            printed = SIGNATURE.sub("", output.read().decode(errors="replace"))
        with open(folder / LOG, "a", encoding="utf-8") as log:
            log.write(printed)
        why = stopped or _refused(printed, logs)
    finally:
        shutil.rmtree(logs, ignore_errors=True)  # they hold signed addresses, which let any reader write
    marks = [mark for one in recorded for mark in one.glob("*.wandb.synced")]
    if len(marks) == len(recorded) and not why:
        found = URL.search(printed)
        return found.group() if found else f"uploaded {recorded[0]}", ""
    for mark in marks:  # with it, the next ``wandb sync`` would skip the run
        mark.unlink()
    return "", why or f"the upload failed, see {LOG}"


def _refused(printed: str, logs: Path) -> str:
    """Return the first failure of an upload, from its output and, for single files, its logs; "" if there is none."""
    failures = [line.partition(" ERROR ")[2] for line in printed.splitlines() if " ERROR " in line]
    for log in logs.glob("debug-sync*"):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"level":"ERROR' in line and GIVEN_UP.search(line):
                record = json.loads(line)
                failures.append(f"{record.get('msg', '')} {record.get('error', '')}".strip())
    for failure in sorted(failures, key=lambda text: "while retrying: " not in text):  # these quote the server
        if answered := ANSWERED.search(failure):
            return str(json.loads(answered[1]))
        return SIGNATURE.sub("", REQUEST.sub("", failure.rpartition("while retrying: ")[2]))
    return ""


def environment(folder: Path, timeout_s: float) -> dict[str, str]:
    """Return the environment of W&B's processes: nothing in the home directory, and few retries.

    WANDB_CONFIG_DIR stays, since the user's own server may be named there.
    """
    limits = {"RETRY_MAX": 2, "RETRY_WAIT_MIN_SECONDS": 0.1, "RETRY_WAIT_MAX_SECONDS": 1}
    limits["TIMEOUT_SECONDS"] = timeout_s / 4
    channels = ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    own = {
        "WANDB_DATA_DIR": str(folder / LOCAL),
        "WANDB_CACHE_DIR": str(folder / LOCAL),
        **processes.environment(),
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",  # crash reports of the client go to a third server
        **{f"WANDB_X_{channel}_{name}": f"{value:g}" for channel in channels for name, value in limits.items()},
    }
    # The mode is settled already. ``wandb sync`` must print the address, even if the user silences W&B elsewhere.
    return {name: value for name, value in own.items() if name not in ("WANDB_MODE", "WANDB_SILENT")}

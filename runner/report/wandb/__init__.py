"""``log=wandb``: Weights & Biases, one run per sweep, or one per case.

Two child processes do the work, after the last timing: ``runner.report.wandb.record`` records the finished run offline,
where no server can disturb it, and ``wandb sync`` uploads it. Nothing of W&B is imported in this process. Without an
API key nothing is recorded, unless the user asks for an offline run.
"""

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from .. import Hint
from .client import NO_KEY, client_environment, may_have_key, run_silently, sync
from .state import NAME_LENGTH, PROJECT_LENGTH, REFUSED, TAG_LENGTH, State, group_of, read_state, write_state

PROJECT = "kernel-runner"
VARIABLES = {  # variables of W&B's client, for fields that the config leaves empty
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_JOB_TYPE",
    "tags": "WANDB_TAGS",
    "notes": "WANDB_NOTES",
}
MARGIN_S = 15.0  # beyond timeout_s, to record on a slow disk
MOST_PATHS = 3  # named one by one in the command that uploads them


@dataclass(frozen=True)
class Wandb:
    """Report a run to Weights & Biases. Fields are those of conf/log/wandb.yaml.

    A field that is None or empty takes the value of W&B's own variable, if that is set.
    """

    project: str | None
    entity: str | None
    group: str | None
    per: Literal["sweep", "case"]
    job_type: str | None
    tags: tuple[str, ...]
    notes: str | None
    mode: Literal["auto", "online", "offline"]
    timeout_s: Annotated[float, "above 0"]

    def __post_init__(self) -> None:
        source: dict[str, str] = {}  # by field: the variable that its value comes from, as a message shows it
        for name, variable in VARIABLES.items():
            if getattr(self, name) in (None, ()) and (value := os.environ.get(variable)):
                source[name] = f"{variable}: "
                words = tuple(filter(None, map(str.strip, value.split(","))))
                object.__setattr__(self, name, words if name == "tags" else value)
        project = PROJECT if self.project is None else self.project
        object.__setattr__(self, "project", project)
        if not 0 < len(project) <= PROJECT_LENGTH or set(project) & set(REFUSED):
            allowed = f"1 to {PROJECT_LENGTH} characters without any of {' '.join(REFUSED)}"
            raise ValueError(f"project: {source.get('project', '')}{project!r} is not allowed; give {allowed}")
        for tag in self.tags:
            if not 0 < len(tag) <= TAG_LENGTH:
                allowed = f"1 to {TAG_LENGTH} characters each"
                raise ValueError(f"tags: {source.get('tags', '')}{tag!r} is not allowed; give {allowed}")
        for name in ("group", "job_type"):
            if len(getattr(self, name) or "") > NAME_LENGTH:
                raise ValueError(f"{name}: {source.get(name, '')}longer than {NAME_LENGTH} characters")

    def publish(self, folder: Path) -> list[str]:
        """Record the run in ``folder``, and upload it unless the user wants otherwise. Raise nothing."""
        if os.environ.get("WANDB_MODE") == "disabled" and self.mode == "auto":
            return ["W&B: off (WANDB_MODE=disabled)"]
        shown = shlex.quote(str(folder))
        try:
            state, reason = self.send(folder, folder)
        except Exception as error:  # a failure of W&B must not change the exit code of a run
            state, reason = State(), f"{type(error).__name__}: {error}"
        if reason == NO_KEY:
            share = f"to share this run: wandb login, then python -m runner report wandb {shown}"
            return [Hint(f"W&B: not logged ({NO_KEY}); {share}")]
        if not state.recorded:
            return [f"W&B: not logged ({reason}); the results are in {shown}"]
        if reason:
            return [f"W&B: kept offline ({reason}); to upload: wandb sync {_paths(folder, state.recorded)}"]
        several = f"{len(state.recorded)} runs in a group: " if state.recorded[1:] else ""
        return [f"W&B: {several}{state.url}"]

    def send(self, folder: Path, into: Path) -> tuple[State, str]:
        """Record the run in ``folder`` and upload it. Return what was done, and why it was not uploaded or "".

        W&B's files go ``into`` a folder, which is that of the run or another. Raises OSError.
        """
        deadline, offline = time.monotonic() + self.timeout_s, self.offline()
        if not (offline or may_have_key()):
            return State(), NO_KEY
        into = into.resolve()
        variables = client_environment(into, self.timeout_s)
        state, reason = self._record(folder.resolve(), into, variables, offline)
        if not state.recorded or (reason := offline or reason):
            return state, reason  # not recorded, and no reason: the server has the run already
        if state.uploaded(into):  # there is nothing new
            return state, ""
        late = f"not uploaded within log.wandb.timeout_s={self.timeout_s:g}"
        paths = [into / name for name in state.recorded]
        url, reason = sync(into, paths, variables, deadline - time.monotonic(), late)
        if not reason:
            if self.per == "case":  # the address of the group whose first run is at ``url``
                url = f"{url.rpartition('/runs/')[0]}/groups/{quote(group_of(folder, self.group), safe='')}"
            state = replace(state, url=url)
            write_state(into, state)
        return state, reason

    def _record(self, folder: Path, into: Path, variables: Mapping[str, str], offline: str) -> tuple[State, str]:
        """Record the run. Return its state, and the reason why it was not recorded or cannot be uploaded, or ""."""
        module = ["kernel_runner.report.wandb.record", str(folder), str(into), json.dumps(asdict(self)), offline]
        limit_s = self.timeout_s + MARGIN_S
        if failure := run_silently(module, into, variables, limit_s, f"not done within {limit_s:g} s"):
            return State(), failure
        # The client's link to its log is absolute: in a copy of the folder it would lead back here.
        for path in (into / "wandb").rglob("*"):
            if path.is_symlink() and os.path.isabs(os.readlink(path)):
                path.unlink()
        state = read_state(into)
        return (State(), state.refused) if state.refused else (state, state.why)

    def offline(self) -> str:
        """Return the setting that forbids the upload, else ""."""
        if self.mode == "offline":
            return "log.wandb.mode=offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled"):
            return f"WANDB_MODE={os.environ['WANDB_MODE']}"
        return ""


def _paths(folder: Path, recorded: Sequence[str]) -> str:
    if len(recorded) > MOST_PATHS:
        return f"{shlex.quote(str(folder / 'wandb'))}/offline-run-*"
    return shlex.join(str(folder / name) for name in recorded)

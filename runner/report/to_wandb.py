"""A W&B Report: conclusion, command, charts, tables and environment of the runs; prints its link.

Runs that were never logged are uploaded first; their folders do not change. Without an API key or a server one line
says what to do, and the exit code is 1.
"""

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..findings.run import Run
from ..records.bad_input import BadInput
from ..records.options import option_defaults
from ..records.schema import build
from ..store import journal, run_folder
from .wandb import Wandb
from .wandb.client import NO_KEY, client_environment, may_have_key, run_silently
from .wandb.state import TITLE_LENGTH, Address, State, read_state

PACKAGE = "wandb_workspaces"


def arguments(parser: ArgumentParser) -> None:
    """Add the options of this format."""
    parser.add_argument("--entity", help="W&B user or team; else that of the run, or your default one")
    parser.add_argument("--project", help="W&B project; else that of the run")
    parser.add_argument("--title", help="title of the report; else the names of the runs")
    parser.add_argument("--draft", action="store_true", help="save it as a draft, which only you see")


def report(runs: Sequence[Run], options: Namespace) -> int:
    """Publish a report on ``runs`` and print its link. Return 1 if that failed. Raises BadInput."""
    if find_spec(PACKAGE) is None:
        raise BadInput("report wandb needs wandb-workspaces; pip install 'kernel-runner[wandb-report]'")
    if options.title is not None and not 0 < len(options.title) <= TITLE_LENGTH:
        raise BadInput(f"--title: give 1 to {TITLE_LENGTH} characters")
    if options.output:
        raise BadInput("--output: this report is at W&B; report html writes a file")
    if empty := next((run for run in runs if not run.rows), None):
        raise BadInput(f"{empty.folder}: no case is done; resume={empty.folder} runs them")
    settings = [_settings(run, options) for run in runs]
    addresses, reason = _addresses(runs, settings, options)
    if reason:
        return _not_published(reason)
    names = " and ".join(dict.fromkeys(run.folder.resolve().name for run in runs))
    devices = replace(runs[0], rows=[row for run in runs for row in run.rows]).devices
    request = {
        "folders": [str(run.folder.absolute()) for run in runs],
        "addresses": [asdict(address) for address in addresses],
        "title": options.title or (f"{names} on {devices}" if devices else names)[:TITLE_LENGTH],
        "entity": options.entity or addresses[0].entity,
        "project": options.project or addresses[0].project,
        "draft": options.draft,
    }
    url, reason = _build(request, settings[0].timeout_s)
    if reason:
        return _not_published(reason)
    print(f"W&B Report{' (draft)' * options.draft}: {url}", flush=True)
    return 0


def _not_published(reason: str) -> int:
    login = "; wandb login, then run this again" if reason == NO_KEY else ""
    unset = "; unset WANDB_MODE, then run this again" if reason.startswith("WANDB_MODE=") else ""
    print(f"W&B: not published ({reason}){login or unset}", flush=True)
    return 1


def _settings(run: Run, options: Namespace) -> Wandb:
    """Return the settings of ``log=wandb`` of the run, else the default ones, with what the user asks for here."""
    fields = {name: value for name, value in option_defaults("log/wandb").items() if name != "name"}
    if (run.folder / run_folder.PLAN).is_file():
        chosen = run_folder.read_plan(run.folder, with_cases=False).log
        fields |= next((choice.fields for choice in chosen if choice.name == "wandb"), {})
    fields |= {name: value for name in ("entity", "project") if (value := getattr(options, name)) is not None}
    fields["tags"] = list(fields["tags"])
    # The report is on runs of whole sweeps, and this command is the wish to upload them.
    return replace(build(Wandb, fields, "log.wandb"), per="sweep", mode="auto")


def _addresses(runs: Sequence[Run], settings: Sequence[Wandb], options: Namespace) -> tuple[list[Address], str]:
    """Upload the runs that are not at W&B. Return the address of each run, and the reason of a failure, or ""."""
    if reason := settings[0].offline() or ("" if may_have_key() else NO_KEY):
        return [], reason
    addresses: list[Address] = []
    for run, reporter in zip(runs, settings, strict=True):
        if not (address := known(run, options)):
            try:
                with tempfile.TemporaryDirectory(prefix="runner-wandb-", ignore_cleanup_errors=True) as into:
                    sent, reason = reporter.send(run.folder, Path(into))
            except OSError as error:
                sent, reason = State(), f"{type(error).__name__}: {error}"
            address = Address.of(sent.url)
            if reason or address is None:
                return [], reason or "the server did not say where the run is"
            print(f"W&B run {run.name}: {address.url}", flush=True)
        addresses.append(address)
    return addresses, ""


def known(run: Run, options: Namespace) -> Address | None:
    """Return the address of the run that ``log=wandb`` uploaded; None if there is none where the user asks for."""
    state = read_state(run.folder)
    size = (run.folder / journal.NAME).stat().st_size
    if not state.uploaded(run.folder) or state.journal_bytes != size or not (there := Address.of(state.url)):
        return None
    elsewhere = (options.entity or there.entity, options.project or there.project) != (there.entity, there.project)
    return None if elsewhere else there


def _build(request: dict[str, Any], timeout_s: float) -> tuple[str, str]:
    """Build the report in a process of its own. Return its address, and why there is none or ""."""
    with tempfile.TemporaryDirectory(prefix="runner-wandb-", ignore_cleanup_errors=True) as place:
        into = Path(place)
        module = ["kernel_runner.report.wandb.workspace", json.dumps(request), str(into / "outcome.json")]
        environment, late = client_environment(into, timeout_s), f"no answer within {timeout_s:g} s"
        if failure := run_silently(module, into, environment, timeout_s, late):
            return "", failure
        outcome = json.loads((into / "outcome.json").read_text(encoding="utf-8"))
        return str(outcome["url"]), str(outcome["why"])

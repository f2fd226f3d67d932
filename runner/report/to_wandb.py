"""A W&B Report: conclusion, command, charts, tables and environment of the runs; prints its link.

Runs that were never logged are uploaded first; their folders do not change. Without an API key or a server the report
is written to a file, and the exit code is 1.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.config import CONF
from runner.experiment import schema
from runner.experiment.case import Choice
from runner.experiment.results import encodable
from runner.experiment.schema import BadInput
from runner.report import charts, wandb
from runner.report.derive import Run
from runner.report.wandb import NO_KEY, Address, Wandb
from runner.store import journal, run_folder

PACKAGE = "wandb_workspaces"
ENDING = "-wandb-report.json"
TITLE = 128  # characters


def arguments(parser: ArgumentParser) -> None:
    """Add the options of this format."""
    parser.add_argument("--entity", help="W&B user or team; else that of the run, or your default one")
    parser.add_argument("--project", help="W&B project; else that of the run")
    parser.add_argument("--title", help="title of the report; else the names of the runs")
    parser.add_argument("--draft", action="store_true", help="save it as a draft, which only you see")


def report(runs: Sequence[Run], options: Namespace) -> int:
    """Publish a report on ``runs`` and print its link. Return 1 if it had to be written to a file. Raises BadInput."""
    if find_spec(PACKAGE) is None:
        raise BadInput("report wandb needs wandb-workspaces; pip install 'kernel-runner[wandb-report]'")
    if options.title is not None and not 0 < len(options.title) <= TITLE:
        raise BadInput(f"--title: give 1 to {TITLE} characters")
    if empty := next((run for run in runs if not run.rows), None):
        raise BadInput(f"{empty.folder}: no case is done; resume={empty.folder} runs them")
    settings = [_settings(run, options) for run in runs]
    addresses, why = _addresses(runs, settings, options)
    request = {
        "folders": [str(run.folder.absolute()) for run in runs],
        "title": options.title or _title(runs),
        "entity": options.entity or (addresses[0].entity if addresses else settings[0].entity) or "",
        "project": options.project or (addresses[0].project if addresses else settings[0].project),
        "draft": options.draft,
    }
    if not why:
        known = [asdict(address) for address in addresses]
        url, why = _build({**request, "addresses": known}, settings[0].timeout_s)
        if not why:
            _say(f"W&B Report{' (draft)' * options.draft}: {url}")
            return 0
    path = charts.target(runs, options.output, ENDING)
    request |= {"addresses": [None] * len(runs), "spec": str(path)}
    return _write(request, why, runs, options, settings[0].timeout_s)


def _settings(run: Run, options: Namespace) -> Wandb:
    """Return the settings of ``log=wandb`` of the run, else the default ones, with what the user asks for here."""
    import yaml

    defaults = yaml.safe_load((CONF / "log" / "wandb.yaml").read_text(encoding="utf-8"))
    own: dict[str, Any] = {}
    if (run.folder / run_folder.PLAN).is_file():
        chosen = [Choice.from_record(one) for one in run_folder.read_head(run.folder)["log"]]
        own = next((dict(one.fields) for one in chosen if one.name == "wandb"), {})
    asked = {name: value for name in ("entity", "project") if (value := getattr(options, name)) is not None}
    fields = {name: value for name, value in {**defaults, **own, **asked}.items() if name != "name"}
    fields["tags"] = list(fields["tags"])
    # The report is on runs of whole sweeps, and this command is the wish to upload them.
    return replace(schema.build(Wandb, fields, "log.wandb"), per="sweep", mode="auto")


def _addresses(runs: Sequence[Run], settings: Sequence[Wandb], options: Namespace) -> tuple[list[Address], str]:
    """Return where each run is at W&B, and upload those that are not there; and why that failed, or ""."""
    why = settings[0].offline() or ("" if wandb.may_have_key() else NO_KEY)
    found: list[Address] = []
    for run, own in zip(runs, settings, strict=True) if not why else ():
        if address := known(run, options):
            found.append(address)
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="runner-wandb-", ignore_cleanup_errors=True) as into:
                sent, why = own.send(run.folder, Path(into))
        except OSError as error:
            sent, why = wandb.State(), f"{type(error).__name__}: {error}"
        address = Address.of(sent.url)
        if why or address is None:
            return [], why or "the server did not say where the run is"
        _say(f"W&B run {run.name}: {address.url}")
        found.append(address)
    return found, why


def known(run: Run, options: Namespace) -> Address | None:
    """Return where ``log=wandb`` has uploaded the run; None if it has not, or elsewhere than the user asks for."""
    state = wandb.state(run.folder)
    size = (run.folder / journal.NAME).stat().st_size
    if not state.uploaded(run.folder) or state.journal_bytes != size or not (found := Address.of(state.url)):
        return None
    elsewhere = (options.entity or found.entity, options.project or found.project) != (found.entity, found.project)
    return None if elsewhere else found


def _build(request: dict[str, Any], timeout_s: float) -> tuple[str, str]:
    """Build the report in a process of its own. Return its address, and why there is none or ""."""
    with tempfile.TemporaryDirectory(prefix="runner-wandb-", ignore_cleanup_errors=True) as place:
        into = Path(place)
        module = ["runner.report.wandb_report", json.dumps(request), str(into / "outcome.json")]
        silent = {**wandb.environment(into, timeout_s), "WANDB_SILENT": "true"}
        start = time.monotonic()
        with open(into / wandb.LOG, "wb") as log:
            code, stopped = wandb.run(module, log, silent, timeout_s, f"no answer within {timeout_s:g} s")
        if stopped or code:
            seconds = time.monotonic() - start
            return "", stopped or f"the process that builds it ended with code {code} after {seconds:.1f} s"
        outcome = json.loads((into / "outcome.json").read_text(encoding="utf-8"))
        return str(outcome["url"]), str(outcome["why"])


def _write(request: dict[str, Any], why: str, runs: Sequence[Run], options: Namespace, timeout_s: float) -> int:
    """Write the report to a file and say how to publish it. Return the exit code. Raises BadInput."""
    path = request["spec"]
    _, problem = _build(request, timeout_s)
    if problem:
        raise BadInput(f"{path}: the report cannot be written: {problem}; give --output PATH")
    words = ["python", "-m", "runner", "report", "wandb", *(str(run.folder) for run in runs)]
    for name in ("entity", "project", "title"):
        words += [f"--{name}", value] if (value := getattr(options, name)) else []
    unset = "unset WANDB_MODE, then " if why.startswith("WANDB_MODE=") else ""
    login = "wandb login, then " if why == NO_KEY else unset
    again = shlex.join([*words, *(["--draft"] if options.draft else [])])
    _say(f"W&B: not published ({why}); the report is in {path}; to publish it: {login}{again}")
    return 1


def _title(runs: Sequence[Run]) -> str:
    """Return the names of the runs and their devices."""
    names = " and ".join(dict.fromkeys(run.folder.resolve().name for run in runs))
    devices = ", ".join(dict.fromkeys(row.device for run in runs for row in run.rows if row.device))
    return (f"{names} on {devices}" if devices else names)[:TITLE]


def _say(text: str) -> None:
    print(encodable(text, sys.stdout.encoding), flush=True)

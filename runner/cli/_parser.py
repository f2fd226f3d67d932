"""The parser of the sub-commands. What several of them take is defined here, and means the same in each."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..records.bad_input import BadInput, choices
from ..records.plan import OUTPUTS

if TYPE_CHECKING:
    from ..findings.run import Run

ARGUMENTS = {  # by what a command takes: its place in the usage, and its meaning
    "runs": ("[RUN...]", "folder of a run, or last: the newest one under output_dir"),
    "tasks": ("FOLDER...", "folder of task files, a file, or a glob"),
    "conditions": ("[NAME=VALUE...]", "the same as for --where: workload=gelu cols=256,1024"),
    "overrides": ("[OVERRIDE...]", "options, fields and flags of a run: see python -m runner --help"),
    "output_dir": ("[output_dir=FOLDER]", "folder of all runs, by default outputs"),
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "where": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE,...",
        "help": "only rows with these values: workload=gelu,impl=torch,triton. Names are columns; workload. and impl. "
        "may be left out. Several values of a name are alternatives",
    },
    "columns": {"metavar": "NAME,...", "help": "columns of docs/columns.md; columns=NAME,... means the same"},
    "output": {"type": Path, "metavar": "PATH", "help": "where to write it"},
}
ENDINGS = {f".{name}": name for name in ("md", "csv", "json", "parquet", "png", "svg", "html")} | {".tex": "latex"}
BINARY = ("parquet", "png")


class Parser(argparse.ArgumentParser):
    """Parser of a sub-command's arguments. A mistake raises BadInput.

    Args:
        command: name of the sub-command.
        doc: docstring of its module: a sentence, details, and examples below a line ``Examples:``.
        takes: names in ``ARGUMENTS`` and ``OPTIONS``.
        formats: values of ``--format``, the default first.
        arguments: more lines for the list of arguments in the help: names and meanings.
        usage: the arguments in the usage line, if they are not those of ``takes``.

    """

    def __init__(
        self,
        command: str,
        doc: str | None,
        takes: Sequence[str] = (),
        *,
        formats: Sequence[str] = (),
        arguments: Mapping[str, str] | None = None,
        usage: str = "",
    ) -> None:
        taken = dict(meaning for name, meaning in ARGUMENTS.items() if name in takes)
        description, _, examples = (doc or "").partition("\nExamples:\n")
        super().__init__(
            prog=f"runner {command}",
            usage=" ".join(["runner", command, *([usage] if usage else taken), "[options]"]),
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev="overrides" not in takes,
        )
        self.command, self.takes, self.formats = command, takes, formats
        lines = {**(arguments or {}), **{name.strip("[]"): meaning for name, meaning in taken.items()}}
        self._positionals.title = "arguments"
        self._positionals.description = "\n".join(f"{name:<21} {meaning}" for name, meaning in lines.items()) or None
        if "overrides" not in takes:  # which are parsed by Hydra
            self.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
        for name in takes:
            if name in OPTIONS:
                self.add_argument(f"--{name}", **OPTIONS[name])
        if formats:
            ending = "what the name of --output ends in, else " if "output" in takes else ""
            self.add_argument("--format", choices=formats, help=f"by default {ending}{formats[0]}")

    def error(self, message: str) -> NoReturn:
        """Raise BadInput."""
        if flag := re.split("[ =]", message.partition("unrecognized arguments: ")[2])[0]:
            message = f"{flag}: no such flag; {self._known(flag)}"
        raise BadInput(f"{message}; see {self.prog} --help")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the options, with ``overrides`` if a run is described, else ``runs`` and ``output_dir``.

        Raises BadInput.
        """
        if "overrides" in self.takes:
            options, overrides = self.parse_known_args(argv)
            options.overrides = overrides
        else:
            options = self.parse_intermixed_args(argv)
            self._assign(options)
        if self.formats:
            self._choose_format(options, getattr(options, "output", None))
        return options

    def _assign(self, options: argparse.Namespace) -> None:
        """Set the fields of ``options`` that the arguments name. Raises BadInput for an unknown one."""
        fields = [name for name in ("columns", "output_dir") if name in self.takes]
        options.runs, options.output_dir = [], OUTPUTS
        for word in options.arguments:
            name, equals, value = word.partition("=")
            if equals and name in fields:
                setattr(options, name, value)
            elif equals and "conditions" in self.takes:
                options.where = [*options.where, word]
            elif {"runs", "tasks"} & {*self.takes} and (not equals or "/" in name or Path(word).exists()):
                options.runs.append(word)
            else:
                known = self._known(name)
                if "conditions" in self.takes:
                    known = f"write workload=gelu impl=triton; {known}"
                elif equals and "where" in self.takes and known.startswith("one of"):
                    known = f"write --where {word}; {known}"
                raise BadInput(f"{name}: not an argument of {self.command}; {known}")

    def _known(self, name: str) -> str:
        """Return the known names, those most like ``name`` first."""
        fields = [f"{field}=" for field in ("columns", "output_dir") if field in self.takes]
        return choices(name, [*fields, *(flag for flag in self._option_string_actions if flag.startswith("--"))])

    def _choose_format(self, options: argparse.Namespace, output: Path | None) -> None:
        """Set ``options.format`` if it is not given. Raises BadInput if it cannot be written or printed."""
        ending = output.suffix if output else ""
        options.format = options.format or ENDINGS.get(ending, self.formats[0] if ending in ("", ".txt") else "")
        if options.format not in self.formats:
            raise BadInput(f"--output {output}: {self.command} writes {', '.join(self.formats)}; give another ending")
        if options.format in BINARY and not output:
            raise BadInput(f"--format {options.format} is not text; add --output PATH")


def read_runs(options: argparse.Namespace) -> list[Run]:
    """Read ``options.runs``, by default the newest, to be shown with ``options.columns``. Raises BadInput."""
    from ..findings import past
    from ..measure.columns import check_columns

    options.runs = options.runs or ["last"]
    runs = past.read_runs(options.runs, options.output_dir)
    if not (columns := getattr(options, "columns", None)):
        return runs
    names = [name for name in columns.strip("[]").split(",") if name]
    shown = check_columns(names, {name for run in runs for row in run.rows for name in row.metrics})
    return [run.with_plan(columns=shown) for run in runs]

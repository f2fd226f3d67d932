"""Command line + conf/*.yaml → a Plan. The only room that knows Hydra and OmegaConf."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runner.experiment.case import CaseRecord, Plan
from runner.experiment.schema import CONF as CONF
from runner.experiment.schema import BadInput

if TYPE_CHECKING:
    from runner.config.compose import Composer

WORD = "resume"
BASELINE = "baseline"
LISTS = (f"{WORD}.retry", f"{WORD}.ignore", "columns")
AXES = ("axes", "workload.axes")
# Fields, and groups of them, that say what to do with cases and choose none: of the run.
OF_THE_RUN = ("launcher", "log", WORD, "output_dir", "name", "columns")
_FOLDER = "give output_dir=..., within which name=... names the run's folder"
NO_HYDRA = "configs are composed by Hydra, but cases are run by this program"
INSTEAD = {  # of fields of Hydra's that would change nothing
    "hydra.run.dir": _FOLDER,
    "hydra.sweep.dir": _FOLDER,
    "hydra.sweep.subdir": _FOLDER,
    "hydra.searchpath": "put YAMLs of yours in a folder and give it as --config-dir",
    "hydra.mode": "-m makes a sweep, and without it there is one case",
    "hydra/sweeper": "give several values and -m for a sweep, or axes=...",
    "hydra.job.name": "give name=..., which names the run's folder, within output_dir=...",
}


def plan(argv: Sequence[str]) -> Plan | None:
    """Return the grid that ``argv`` asks for, or None if Hydra has answered (``--cfg job``, ``--info``).

    Raises:
        BadInput: anything wrong with the command line or a YAML, in one sentence.

    """
    from runner.config import grid

    words = [normalize(word) for word in argv]
    overrides = [word for word in words if _is_override(word)]
    if not any(word.startswith(f"{WORD}.of=") for word in overrides):
        return grid.plan(configs) if (configs := _compose(words)) else None
    from runner.config import resume

    resumed = resume.find(overrides, _defaults())
    configs = _compose([*resumed.words(overrides), *words] if resumed else words)
    if configs is None:
        return None
    return resumed.settled(grid.plan(configs, resumed.cases)) if resumed else grid.plan(configs)


def normalize(word: str) -> str:
    """Return ``word`` as Hydra takes it.

    ``resume=X`` becomes ``resume.of='X'``, fields and groups that hold lists take ``a,b``, and ``log=none`` is the
    empty list. Hydra would take ``baseline=compiled(of=torch)``, as the table prints it, for a call of a function,
    would look for given axes among the existing ones, and would merge ``{}``, which changes nothing. A word without
    ``=`` stays as it is, for Hydra to refuse.
    """
    key, equals, value = word.partition("=")
    if not equals:
        return word
    plain = value and value != "null" and value[0] not in "'\""
    if key in (WORD, f"{WORD}.of") and plain:
        return f"{WORD}.of={quoted(value)}"
    if key == BASELINE and plain and "(" in value:
        return f"{key}={quoted(value)}"
    if key == "log" and value in ("none", "null", ""):
        return "log=[]"
    if (key in LISTS or (key == "log" and "," in value)) and not value.startswith("["):
        return f"{key}=[{value}]"
    if key in AXES and value == "{}":
        return f"{key}=null"
    if key == "axes" and value.startswith("{"):
        return f"+{word}"
    return f"{WORD}.of={value or 'null'}" if key == WORD else word


def of_the_run(key: str) -> bool:
    """Whether ``key`` is one of ``OF_THE_RUN``, or within one."""
    return any(f"{key}.".startswith(f"{name}.") for name in OF_THE_RUN)


def quoted(value: str) -> str:
    """``value`` as a word of Hydra's grammar."""
    text = value.replace("'", r"\'")
    return f"'{text}'"


def validate(cases: Sequence[CaseRecord]) -> None:
    """Raise BadInput unless each case, of a plan that was read and not composed, could be asked for today."""
    from runner.config import grid

    grid.validate(cases)


def _defaults() -> dict[str, Any]:
    """Return ``config.yaml`` as it is."""
    import yaml

    text = (CONF / "config.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


@contextmanager
def composer(words: Sequence[str]) -> Iterator[tuple[Composer, Namespace]]:
    """A Composer, and Hydra's flags with the overrides among ``words``. What is wrong with these raises BadInput."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.config.compose import Composer
    from runner.config.messages import one_line

    _no_environment()
    asked = _flags(words)
    folders = [CONF, *([Path(asked.config_dir)] if asked.config_dir else [])]
    if asked.config_name or asked.config_path:
        raise BadInput(
            "--config-name, --config-path: not here; put YAMLs of yours in a folder and give it as --config-dir"
        )
    if asked.config_dir and not folders[-1].is_dir():
        raise BadInput(f"--config-dir {asked.config_dir}: there is no such folder")
    try:
        yield Composer(asked.config_dir), asked
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:  # ValueError: workload=3
        raise BadInput(one_line(error, folders)) from error


def _compose(words: Sequence[str]) -> list[dict[str, Any]] | None:
    """Compose the config of every case; None if Hydra has answered instead. Raises BadInput."""
    from runner.config import sweep

    with composer(words) as (compose, asked):
        if asked.hydra_help or asked.cfg or asked.info or asked.shell_completion:
            if asked.cfg in ("job", "all"):
                _check(asked)
            _answer(words)
            return None
        for word in asked.overrides:
            if (key := word.partition("=")[0].lstrip("+~")).startswith(("hydra.", "hydra/")):
                raise BadInput(f"{key}: not used here; {INSTEAD.get(key, NO_HYDRA)}")
        return sweep.configs(compose, asked.overrides, multirun=asked.multirun)


def _answer(words: Sequence[str]) -> None:
    """Let Hydra answer ``--cfg``, ``--info``, ``--hydra-help``, or install completion."""
    import hydra

    from runner.config.compose import register_kernels

    register_kernels()
    before, sys.argv = sys.argv, ["runner", *_in_order(words)]  # the name that argparse prints
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and leaves the printing to us
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda config: None)()
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]


def _check(asked: Namespace) -> None:
    """Raise BadInput if the config that Hydra is to show could not be run. Axes are left out: it is one case."""
    from runner.config import grid, sweep
    from runner.config.compose import Composer

    words = [*asked.overrides, "axes=null", "default_axes=false"]
    for config in sweep.configs(Composer(asked.config_dir), words, multirun=True):
        grid.check(config)


def _in_order(argv: Sequence[str]) -> list[str]:
    """Put the overrides in one piece, as argparse takes them."""
    return sorted(argv, key=_is_override)


def _flags(argv: Sequence[str]) -> Namespace:
    """Return Hydra's flags, and the overrides. Raises BadInput."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "runner"
    parser.error = _refuse  # type: ignore[method-assign]
    return parser.parse_args(_in_order(argv))


def _refuse(message: str) -> NoReturn:
    raise BadInput(f"{message}; python -m runner --help lists what may be given")


def _no_environment() -> None:
    """Refuse ``${oc.env:...}``: a config is shown, kept and sent to W&B, and the environment holds keys."""
    from omegaconf import OmegaConf

    def refuse(name: str, *_: object) -> None:
        raise ValueError(
            f"${{oc.env:{name}}}: a config cannot read the environment; give the value on the command line"
        )

    OmegaConf.register_new_resolver("oc.env", refuse, replace=True)


def _is_override(word: str) -> bool:
    return not word.startswith("-") and ("=" in word or word.startswith("~"))

"""Hydra's side of the house: command line + conf/*.yaml → a Plan. Nothing below knows Hydra or OmegaConf."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.experiment.case import Case, Plan
from runner.experiment.schema import CONF as CONF
from runner.experiment.schema import BadInput

_FOLDER = "give output_dir=..., within which name=... names the run's folder"
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
    """The grid that ``argv`` asks for, or None if Hydra answered by itself (``--help``, ``--cfg job``, completion).

    Raises:
        BadInput: anything wrong with the command line or a YAML, in one sentence.

    """
    from runner.config import grid, resume, trust

    words = [resume.spelt(word) for word in argv]
    overrides = [word for word in words if _is_override(word)]
    config = _defaults() if any(word.startswith("resume.of=") for word in overrides) else {}
    resumed = resume.find(overrides, config) if config else None
    plan = resume.at_once(resumed, words, config) if resumed else None
    config_dir = None
    if plan is None:
        config_dir = _flags(words).config_dir
        configs = _compose([*resumed.words(overrides), *words] if resumed else words)
        if configs is None:
            return None
        plan = resumed.settled(grid.plan(configs, resumed.cases)) if resumed else grid.plan(configs)
    trust.check_code(plan, overrides, config_dir and Path(config_dir), resumed.folder if resumed else None)
    return plan


def validate(cases: Sequence[Case]) -> None:
    """Raise BadInput unless each case, of a plan that was read and not composed, could be asked for today."""
    from runner.config import grid

    grid.validate(cases)


def _defaults() -> dict[str, Any]:
    """``config.yaml`` as it is."""
    import yaml

    text = (CONF / "config.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def _compose(words: Sequence[str]) -> list[dict[str, Any]] | None:
    """The config of every case, by Hydra; None if it has answered by itself. Raises BadInput."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.config import compose, sweep
    from runner.config.messages import one_line

    _no_environment()
    argv = ["runner", *_for_hydra(words)]  # the name that argparse prints
    before, sys.argv = sys.argv, argv
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and leaves the printing to us
    compose.register()
    sweep.register()
    compose.register_kernels()
    found: list[list[dict[str, Any]]] = []

    def collect(configs: Any) -> None:
        found.append(configs)

    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(collect)()
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:  # ValueError: workload=3
        raise BadInput(one_line(error, _folders(words))) from error
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]  # workers must not inherit it
    return found[0] if found else None


def _folders(words: Sequence[str]) -> list[Path]:
    """Where there are groups: ours, and the one that the user names."""
    config_dir = _flags(words).config_dir
    return [CONF, *([Path(config_dir)] if config_dir else [])]


def _for_hydra(argv: Sequence[str]) -> list[str]:
    """What Hydra gets to see. Where it answers by itself, everything; else its flags, and the sweeper gets the rest."""
    from runner.config import trust
    from runner.config.sweep import GridSweeper

    words, asked = _in_order(argv), _flags(argv)
    if asked.config_name or asked.config_path:  # one of its own could have Hydra call anything
        raise BadInput(
            "--config-name, --config-path: not here; put YAMLs of yours in a folder and give it as --config-dir"
        )
    if asked.config_dir:
        trust.check_folder(Path(asked.config_dir))
    if asked.cfg in ("job", "all"):
        place = ["--config-dir", asked.config_dir] if asked.config_dir else []
        _check([*place, *(word for word in words if _is_override(word))])
    if asked.help or asked.hydra_help or asked.cfg or asked.info or asked.shell_completion:
        return words
    for word in words:
        if (key := word.partition("=")[0].lstrip("+~")) in INSTEAD:
            raise BadInput(f"{key}: not used here; {INSTEAD[key]}")
    GridSweeper.overrides = [word for word in words if _is_override(word) and not _is_hydras(word)]
    GridSweeper.multirun = asked.multirun
    return [word for word in words if word not in GridSweeper.overrides]


def _in_order(argv: Sequence[str]) -> list[str]:
    """As argparse takes them: the overrides in one piece."""
    return sorted(argv, key=_is_override)


def _flags(argv: Sequence[str]) -> Namespace:
    """Hydra's flags among ``argv``."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "runner"
    return parser.parse_known_args(_in_order(argv))[0]


def _check(words: Sequence[str]) -> None:
    """Raise BadInput if the config that Hydra is to show could not be run. Axes are not of it: it is of one case."""
    from runner.config import grid

    for config in _compose([*words, "axes=null", "default_axes=false", "-m"]) or []:
        grid.check(config)


def _no_environment() -> None:
    """What a config holds is shown, kept and sent to W&B; so it may not read the environment, where keys are."""
    from omegaconf import OmegaConf

    def refuse(name: str, *_: object) -> None:
        raise ValueError(
            f"${{oc.env:{name}}}: a config cannot read the environment; give the value on the command line"
        )

    OmegaConf.register_new_resolver("oc.env", refuse, replace=True)


def _is_override(word: str) -> bool:
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))

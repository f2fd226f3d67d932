"""Turn the command line and ``conf/*.yaml`` into a Plan. Only this package knows Hydra and OmegaConf."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..records.bad_input import BadInput
from ..records.options import CONF
from ..records.plan import Plan
from ..records.replaced import replaced
from . import grid
from .words import ARGUMENT, normalize

if TYPE_CHECKING:
    from .compose import Composer

NOT_HYDRA = "not used here; output_dir= and name= give the run's folder, -m makes a sweep, --config-dir adds YAML files"


def plan(argv: Sequence[str]) -> Plan:
    """Return the plan for ``argv``. Raises BadInput, and SystemExit once Hydra has answered ``--cfg`` or ``--info``."""
    from . import resume, sweep
    from .own_workloads import registered

    with composer(argv) as (compose, flags):
        resumes = any(line.lstrip("+").startswith("resume.of=") for line in flags.overrides)
        earlier = resume.find_earlier(compose, flags.overrides) if resumes else None
        added = resume.settings(earlier, compose, flags.overrides) if earlier else []
        overrides = [*added, *flags.overrides]
        if flags.hydra_help or flags.cfg or flags.info or flags.shell_completion:
            words = [word for word in map(normalize, registered(argv)) if word not in flags.overrides]
            if flags.cfg in ("job", "all"):  # check the shown config as a grid of one case
                single = [*(f"{name}=null" for name in grid.AXES), "default_axes=false", "baseline=null"]
                shown = sweep.configs(compose, [*overrides, *single], multirun=True)
                grid.plan_grid(shown)
                lines = next(sweep.unfold(compose, [*overrides, *single], multirun=True))
                overrides = [*sweep.quick_lines(shown[0]), *(line for line in lines if line not in single)]
            _answer([*words, *(f"++{line}" if line.startswith(ARGUMENT) else line for line in overrides)])
            raise SystemExit(0)
        for line in overrides:
            if (key := line.partition("=")[0].lstrip("+~")).startswith(("hydra.", "hydra/")):
                raise BadInput(f"{key}: {NOT_HYDRA}")
        configs = sweep.configs(compose, overrides, multirun=flags.multirun)
    plan = grid.plan_grid(configs, earlier.cases if earlier else None)
    if earlier:
        plan = replace(plan, whole=True, resume=replace(plan.resume, of=earlier.resume.of))
    grid.check_references(plan.cases)
    return plan


@contextmanager
def composer(words: Sequence[str]) -> Iterator[tuple[Composer, Namespace]]:
    """Yield a Composer, and the flags and normalized overrides in ``words``. Hydra's exceptions become BadInput."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ..implementations import kernel_names
    from .compose import Composer, shipped
    from .messages import one_line
    from .own_workloads import forget, offered, registered

    OmegaConf.register_new_resolver("oc.env", _refuse_environment, replace=True)
    forget()
    words = registered(words)
    flags = _flags(list(map(normalize, words)))
    folders = (CONF, Path(flags.config_dir)) if flags.config_dir else (CONF,)
    if flags.config_name or flags.config_path:
        raise BadInput("--config-name, --config-path: not used here; put your own YAMLs in a folder for --config-dir")
    if not folders[-1].is_dir():
        raise BadInput(f"--config-dir {flags.config_dir}: there is no such folder; give that of your YAML files")
    try:
        own = flags.config_dir or offered()
        yield Composer(folders) if own else shipped(tuple(kernel_names())), flags
    except (HydraException, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise BadInput(one_line(error, folders, words)) from error


def _answer(words: Sequence[str]) -> None:
    """Let Hydra answer ``--cfg``, ``--info`` or ``--hydra-help``, or install completion."""
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing
    try:
        with replaced(sys, "argv", ["runner", *words]):  # argparse prints the name
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda config: None)()
    finally:
        del os.environ["HYDRA_FULL_ERROR"]


def _flags(words: Sequence[str]) -> Namespace:
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "runner"
    parser.error = _refuse_flags  # type: ignore[method-assign]
    flags, unknown = parser.parse_known_intermixed_args(words)
    flags.overrides.sort(key=lambda word: "=" in word or word.startswith("~"))  # first the words that are not overrides
    if unknown:
        flag, *after = words[words.index(unknown[0]) :]
        name, _, value = flag.lstrip("-").partition("=")
        if grid.is_field(name):
            value = value or (after[0] if after and after[0].isidentifier() else "...")
            raise BadInput(f"{flag}: options and fields have no dashes; write {name}={value}")
        if not (flags.overrides and flags.overrides[0].isidentifier()):  # told as no override: perhaps a sub-command
            _refuse_flags(f"{flag}: no such flag" + f"; a field is written workload.{name}=..." * name.isidentifier())
    return flags


def _refuse_flags(message: str) -> NoReturn:
    raise BadInput(f"{message}; python -m runner --help lists what may be given")


def _refuse_environment(name: str, *_: object) -> NoReturn:
    """Refuse ``${oc.env:...}``, since a config is shown, stored and uploaded, and the environment holds keys."""
    raise ValueError(f"${{oc.env:{name}}}: a config cannot read the environment; give the value on the command line")

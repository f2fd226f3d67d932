"""Turn the command line and ``conf/*.yaml`` into a Plan. Only this room knows Hydra and OmegaConf."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runner.config import grid
from runner.config.grid import validate as validate
from runner.experiment.case import Plan
from runner.experiment.schema import CONF as CONF
from runner.experiment.schema import BadInput

if TYPE_CHECKING:
    from runner.config.compose import Composer

REVISION = "impl.rev"
ARGUMENT = "impl.args."
LISTS = ("resume.retry", "resume.ignore", "columns")
NOT_HYDRA = "not used here; output_dir= and name= give the run's folder, -m makes a sweep, --config-dir adds YAML files"


def plan(argv: Sequence[str]) -> Plan | None:
    """Return the grid that ``argv`` asks for, or None if Hydra has answered (``--cfg job``, ``--info``).

    Raises:
        BadInput: a mistake on the command line or in a YAML file; the message is one line.

    """
    from runner.config import resume, sweep

    with composer(argv) as (compose, asked):
        resumes = any(line.lstrip("+").startswith("resume.of=") for line in asked.overrides)
        earlier = resume.find(compose, asked.overrides) if resumes else None
        added = earlier.overrides(compose, asked.overrides) if earlier else []
        overrides = [*added, *asked.overrides]
        if asked.hydra_help or asked.cfg or asked.info or asked.shell_completion:
            words = list(map(normalize, argv))
            if asked.cfg in ("job", "all"):  # check the shown config as a grid of one case
                single = [*(f"{name}=null" for name in grid.AXES), "default_axes=false", "baseline=null"]
                shown = sweep.configs(compose, [*overrides, *single], multirun=True)
                grid.plan(shown)
                added += sweep.quick_lines(shown[0])
                words = sweep.with_sizes(compose, words, asked.overrides)
            _answer([*added, *(f"++{word}" if word.startswith(ARGUMENT) else word for word in words)])
            return None
        for line in overrides:
            if (key := line.partition("=")[0].lstrip("+~")).startswith(("hydra.", "hydra/")):
                raise BadInput(f"{key}: {NOT_HYDRA}")
        configs = sweep.configs(compose, overrides, multirun=asked.multirun)
    found = earlier.plan(configs) if earlier else grid.plan(configs)
    grid.check_references(found.cases)
    return found


def normalize(word: str) -> str:
    """Return ``word`` in Hydra's grammar.

    ``resume=X`` becomes ``resume.of='X'``, lists may be written ``a,b``, and ``log=none`` is the empty list. Labels
    such as ``compiled(of=torch)`` are quoted, since Hydra reads them as function calls, and so are revisions. Given
    axes are added, since there are none to override. ``{}`` becomes null, since merging ``{}`` changes nothing.
    """
    key, equals, value = word.partition("=")
    if not equals:
        return word  # Hydra refuses it
    unquoted = value and value != "null" and value[0] not in "'\""
    if key in ("resume", "resume.of"):
        return f"resume.of={quote(value) if unquoted else value or 'null'}"
    if (key == "baseline" or key.endswith(".reference")) and unquoted and any(sign in value for sign in "(@"):
        return f"{key}={quote(value)}"
    if key.lstrip("+") == REVISION:
        return quote_revisions(word)
    if key == "log" and value in ("none", "null", ""):
        return "log=[]"
    if (key in LISTS or (key == "log" and "," in value)) and not value.startswith("["):
        return f"{key}=[{value}]"
    if key in (*grid.AXES, "workload.axes") and value == "{}":
        return f"{key}=null"
    return f"+{word}" if key in grid.AXES and value.startswith("{") else word


def quote_revisions(word: str) -> str:
    """Quote each revision of ``impl.rev=HEAD~1,main``.

    Hydra's grammar has no ``~`` and no ``^``, and takes the commit ``1234567`` for a number. What is quoted already,
    null, a list or a function of that grammar stays as it is.
    """
    key, _, value = word.partition("=")
    names = value.split(",")
    if not all(names) or any(sign in value for sign in "'\"[]()"):
        return word
    return f"{key}={','.join(name if name == 'null' else quote(name) for name in names)}"


def quote(value: str) -> str:
    """Return ``value`` as a quoted string of Hydra's grammar."""
    text = value.replace("'", r"\'")
    return f"'{text}'"


@contextmanager
def composer(words: Sequence[str]) -> Iterator[tuple[Composer, Namespace]]:
    """Yield a Composer, and Hydra's flags and overrides among ``words``, normalized.

    What Hydra raises becomes BadInput.
    """
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.config.compose import Composer
    from runner.config.messages import not_yaml, one_line

    OmegaConf.register_new_resolver("oc.env", _refuse_environment, replace=True)
    asked = _flags([normalize(word) for word in words])
    folders = [CONF, *([Path(asked.config_dir)] if asked.config_dir else [])]
    if asked.config_name or asked.config_path:
        raise BadInput("--config-name, --config-path: not used here; put your own YAMLs in a folder for --config-dir")
    if not folders[-1].is_dir():
        raise BadInput(f"--config-dir {asked.config_dir}: there is no such folder")
    try:
        yield Composer(asked.config_dir), asked
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        raise BadInput(one_line(error, folders, words)) from error
    except (LookupError, AttributeError) as error:  # by PyYAML, or a fault of this program
        if not (message := not_yaml(error, folders)):
            raise
        raise BadInput(message) from error


def _answer(words: Sequence[str]) -> None:
    """Let Hydra answer ``--cfg``, ``--info`` or ``--hydra-help``, or install completion."""
    import hydra

    before, sys.argv = sys.argv, ["runner", *_overrides_last(words)]  # argparse prints the name
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda config: None)()
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]


def _flags(words: Sequence[str]) -> Namespace:
    """Parse Hydra's flags and the overrides. Raises BadInput."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "runner"
    parser.error = _refuse_flags  # type: ignore[method-assign]
    asked, rest = parser.parse_known_args(_overrides_last(words))
    asked.overrides += [word for word in rest if not word.startswith("-")]  # behind a word that is none
    if unknown := [word for word in rest if word.startswith("-")]:
        flag, *after = words[words.index(unknown[0]) :]
        name, _, value = flag.lstrip("-").partition("=")
        if grid.is_field(name):
            value = value or (after[0] if after and after[0].isidentifier() else "...")
            raise BadInput(f"{flag}: options and fields have no dashes; write {name}={value}")
        _refuse_flags(f"{flag}: no such flag")
    return asked


def _refuse_flags(message: str) -> NoReturn:
    raise BadInput(f"{message}; python -m runner --help lists what may be given")


def _overrides_last(words: Sequence[str]) -> list[str]:
    """Put the overrides in one piece: argparse needs that."""
    return sorted(words, key=lambda word: not word.startswith("-") and ("=" in word or word.startswith("~")))


def _refuse_environment(name: str, *_: object) -> NoReturn:
    """Refuse ``${oc.env:...}``: a config is shown, stored and uploaded, and the environment holds keys."""
    raise ValueError(f"${{oc.env:{name}}}: a config cannot read the environment; give the value on the command line")

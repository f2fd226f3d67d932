"""What Hydra and OmegaConf raise → one line: what was asked, what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from runner.config.grid import FIRST_LINE
from runner.experiment.schema import CONF, choices

SEVERAL = ("measure", "log")  # groups of which a run may have several options
EXPERIMENT = "experiment/"  # where a group is looked for that an experiment's defaults name without a slash


def one_line(error: BaseException, folders: Sequence[Path] = (CONF,)) -> str:
    """The sentence for the user; the exception's own first line where nothing better is known.

    ``folders`` have the groups: ours, and the user's.
    """
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _no_such_option(error)
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: not valid YAML: {error.problem}"
    if isinstance(error, OverrideParseException):
        return _no_override(error)
    if isinstance(error, ConfigCompositionException) and "No match in the defaults list" in str(error):
        group = str(error).partition("'")[2].partition("'")[0]
        if group.startswith(EXPERIMENT):
            return f"{group}: nothing to override; in its defaults write: override /<group>: <option>, with the slash"
        return f"{group}: nothing to override; add it, as in +{group}=..."
    if isinstance(error, ConfigCompositionException) and "@experiment." in str(error):
        return f"{str(error).splitlines()[0].rstrip('.')}: {FIRST_LINE}"
    cause = _deepest(error)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _bad_field(cause, folders)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _no_override(error: OverrideParseException) -> str:
    if "=" not in error.override:
        commands = [
            name
            for name in (path.stem for path in (Path(__file__).parents[1] / "cli").glob("[a-z]*.py"))
            if name != "run"
        ]  # which is what goes without a name
        if near := get_close_matches(error.override, commands, 1, 0.7):
            return (
                f"{error.override}: not an override; did you mean the sub-command {near[0]}, "
                f"as in python -m runner {near[0]}?"
            )
        if error.override.endswith(("]", "}", ",")) or error.override.startswith(("[", "{")):
            return (
                f"{error.override}: not an override; a list is written without spaces, or quoted: 'impl=[naive,torch]'"
            )
        example = "resume=last" if error.override.split(".")[0] == "resume" else "workload=gelu"
        return f"{error.override}: not an override; write group=option or field=value, as in {example}"
    _, evaluating, why = str(error).partition(" while evaluating ")
    if evaluating:  # 'range(a,b)': mismatch type argument start: ...
        return f"{error.override}: {why.partition(': ')[2].splitlines()[0]}"
    key, _, value = error.override.partition("=")
    if "" in map(str.strip, value.split(",")):
        return f"{error.override}: nothing stands before or after a comma; leave that comma out"
    key = key.strip()
    return f"{error.override}: cannot be read; close its brackets, or quote the value within quotes: \"{key}='...'\""


def _no_such_option(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if group.startswith(EXPERIMENT):
        of = group[len(EXPERIMENT) :]
        return f"{group}={name}: no such option; in an experiment's defaults write: override /{of}: {name}"
    return f"{group}={name}: no such option; {choices(name, (o.rpartition('/')[2] for o in error.options or ()))}"


def _is_option(group: str, name: str) -> bool:
    return (CONF / group / f"{name}.yaml").exists()


def _bad_field(cause: OmegaConfBaseException, folders: Sequence[Path]) -> str:
    text = str(cause.msg or cause).splitlines()[0]
    parent = cause.parent_node
    if "not in struct" in text and isinstance(parent, DictConfig):
        fields = [str(key) for key in parent if key != "hydra"]
        group = str(cause.full_key).partition(".")[0]
        if cause.full_key == f"{group}.{cause.key}" and group in SEVERAL and _is_option(group, str(cause.key)):
            chosen = sorted({str(cause.key), *fields})
            return f"{cause.full_key}: not chosen; name it, as in '{group}=[{','.join(chosen)}]'"
        if not fields:
            return f"{cause.full_key}: no such field yet; add it, as in +{cause.full_key}=..."
        if hint := meant(str(cause.full_key), parent, folders):
            return f"{cause.full_key}: {hint}"
        return f"{cause.full_key}: no such field; {choices(str(cause.key), fields, rare=('axes',))}"
    return f"{cause.full_key}: {text}"


def _deepest(error: BaseException) -> BaseException:
    """Hydra wraps what OmegaConf says; the inner one knows the field."""
    while error.__cause__ is not None and not isinstance(error, OmegaConfBaseException):
        error = error.__cause__
    return error


PACKAGE = re.compile(r"^# @package ([\w.]+)", re.MULTILINE)  # where a YAML's fields go, if not under its group
EVERYWHERE = "_global_"  # the package of experiments, whose fields are those of others
SHARED = ("name", "axes")  # of every option, or of the group: they tell none from another


@dataclass(frozen=True)
class Field:
    """A field of an option of ``conf/``, or of a folder of the user's."""

    key: str  # as it is overridden: workload.layers, measure.ncu.set
    group: str
    option: str  # that has it


def meant(key: str, parent: DictConfig, folders: Iterable[Path]) -> str:
    """The rest of the sentence ``key: ...``: where a field of that name is to be had; empty if nowhere.

    ``parent`` is the node that has no such field; ``folders`` hold the groups.
    """
    chosen, name = parent._get_root(), key.rpartition(".")[2]
    assert isinstance(chosen, DictConfig)
    fields = [field for field in _fields(folders) if field.key.rpartition(".")[2] == name]
    if same := [field for field in fields if field.key == key]:
        group = same[0].group
        options = list(dict.fromkeys(field.option for field in same))
        have = "has" if len(options) == 1 else "have"
        own = chosen.get(group)
        asked = f"{group}={own.get('name')}" if isinstance(own, DictConfig) else group
        return f"{asked} has no such field; {', '.join(options)} {have}: {group}={options[0]}"
    if here := sorted(path for path in _paths(chosen, "") if path.rpartition(".")[2] == name and ".axes." not in path):
        return f"no such field; did you mean {' or '.join(here)}?"
    others = dict.fromkeys(f"{key}, of {group}={','.join(options)}" for key, group, options in _by_key(fields))
    return f"no such field; did you mean {' or '.join(others)}?" if others else ""


def _by_key(fields: Iterable[Field]) -> Iterator[tuple[str, str, list[str]]]:
    """Each key with its group and the options that have it."""
    options: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        options.setdefault((field.key, field.group), []).append(field.option)
    for (key, group), names in options.items():
        yield key, group, list(dict.fromkeys(names))


def _fields(folders: Iterable[Path]) -> Iterator[Field]:
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.yaml"))):
        try:
            text = path.read_text(encoding="utf-8")
            values = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue  # it is told of where it is chosen
        header = PACKAGE.search(text)
        package, group = header[1] if header else path.parent.name, path.parent.name
        if package != EVERYWHERE and isinstance(values, dict):
            yield from (Field(f"{package}.{name}", group, path.stem) for name in values if name not in SHARED)


def _paths(config: DictConfig, prefix: str) -> Iterator[str]:
    """Every field of ``config``, and those within it, but for Hydra's own."""
    for name in map(str, config):
        if prefix or name != "hydra":
            yield f"{prefix}{name}"
            inner = config._get_node(name)
            if isinstance(inner, DictConfig) and not inner._is_none():
                yield from _paths(inner, f"{prefix}{name}.")

"""Turn exceptions of Hydra and OmegaConf into one line for the user."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..implementations import kernel_names
from ..records.bad_input import BadInput, choices
from ..records.options import CONF, read_yaml
from ..tasks import own_file
from .grid import BESIDE, FIRST_LINE, having_argument, is_field
from .own_workloads import offered

ADDED = ("experiment", "shapes")  # groups without an option by default; +experiment=demo adds one
SEVERAL = ("measure", "log", "shapes")  # groups with several options in a config
# Errors from reading a YAML file. PyYAML raises LookupError for !!bool x, and AttributeError for !!timestamp x.
YAML_ERRORS = (OSError, ValueError, RecursionError, LookupError, AttributeError, yaml.YAMLError, OmegaConfBaseException)
EXPERIMENT = "experiment/"  # where Hydra looks for a group that an experiment's defaults name without a slash
PACKAGE = re.compile(r"^# @package ([\w.]+)", re.MULTILINE)  # a YAML file's fields go there, else under its group


def one_line(error: BaseException, folders: Sequence[Path] = (CONF,), words: Sequence[str] = ()) -> str:
    """Return the message for the user; by default the exception's own first line.

    ``folders`` hold the groups: ``conf/`` and the user's folder. ``words`` are the words of the command line.
    """
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _no_such_option(error.missing_cfg_file or "", error.options, folders, words)
    if isinstance(error, RecursionError):
        return "a value is nested too deeply, or contains itself"
    if isinstance(error, OverrideParseException):
        return _no_override(error, words)
    text, cause = str(error), error
    if isinstance(error, ConfigCompositionException) and "No match in the defaults list" in text:
        group = text.partition("'")[2].partition("'")[0]
        if group.startswith(EXPERIMENT):
            return f"{group}: nothing to override; in its defaults write: override /<group>: <option>, with the slash"
        return f"{group}: nothing to override; add it, as in +{group}=..."
    if isinstance(error, ConfigCompositionException) and "@experiment." in text:
        return f"{text.splitlines()[0].rstrip('.')}: {FIRST_LINE}"
    if twice := re.match(r"(?:Multiple values for |Could not append to .* at ')([\w./]+)['.]", text):
        return f"{twice[1]}: it is there already; leave out the +, as in {twice[1]}=..."
    if text.startswith("Could not delete from config"):
        return f"~{text.split(chr(39))[1]}: there is no such field to remove; leave it out"
    while cause.__cause__ is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__  # Hydra's exceptions wrap OmegaConf's, which knows the field
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _bad_field(cause, folders)
    lines = [line.strip() for line in (text or str(cause)).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def check_yaml(file: Path) -> None:
    """Raise BadInput, with the reason, if ``file`` exists and is not a YAML file."""
    try:
        OmegaConf.load(file)
    except FileNotFoundError:
        return
    except RecursionError:
        raise BadInput(f"{file}: nested too deeply, or contains itself") from None
    except YAML_ERRORS as error:
        where, reason = str(file), str(error).partition("\n")[0]
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            where, reason = f"{file}, line {error.problem_mark.line + 1}", str(error.problem)
        raise BadInput(f"{where}: not valid YAML: {reason}") from None


def _no_override(error: OverrideParseException, words: Sequence[str]) -> str:
    word = error.override
    if "=" not in word and (word == "last" or Path(word).is_dir()):
        return f"{word}: not an override; did you mean resume={word}, or python -m runner show {word}?"
    if split := _split_by_spaces(word, words):
        joined = re.sub(r"[, ]+", ",", re.sub(r"(?<=[\[{]) | (?=[\]}])", "", split))
        joined = re.sub(rf"^({'|'.join(SEVERAL)})=([^\[]*)$", r"\1=[\2]", joined)
        return f"{split}: a value has no spaces; write {shlex.quote(joined)}"
    if "=" not in word:
        commands = [path.stem for path in (Path(__file__).parents[1] / "cli").glob("[a-z]*.py")]
        if near := get_close_matches(word.lower(), commands, 1, 0.7):
            meant = f"the sub-command {near[0]}, as in python -m runner {near[0]}"
            return f"{word}: not an override; did you mean {meant}?"
        if re.search(r"\.py\b", word):
            return f"{word}: not an override; did you mean workload={word}, or impl=file impl.path={word}?"
        groups = [folder.name for folder in sorted(CONF.iterdir()) if (folder / f"{word}.yaml").is_file()]
        example = f"{'+' * (groups[0] in ADDED)}{groups[0]}={word}" if groups else "workload=gelu"
        example = "resume=last" if word == "resume" else f"{word}=..." if is_field(word) else example
        return f"{word}: not an override; write group=option or field=value, as in {example}"
    if label := re.search(r"^impl=.*?\b(\w+)\((\w+=[^,)]+)\)", word):
        return f"{word}: {label[1]}({label[2]}) is a label; write impl={label[1]} impl.{label[2]}"
    _, evaluating, reason = str(error).partition(" while evaluating ")
    if evaluating:  # 'range(a,b)': mismatch type argument start: ...
        return f"{word}: {reason.partition(': ')[2].splitlines()[0]}"
    key, _, value = word.partition("=")
    if value.startswith("=") or any(map(is_field, re.findall(r"\s([\w.]+)=", word))):
        return f"{word}: two equals signs; write {re.sub('==+', '=', word)}" + ", without the quotes" * (" " in word)
    if re.fullmatch(r"\(.*\)|\{[^:]*\}", value):
        return f"{word}: no list has such brackets; write {key}={value[1:-1]} -m to sweep, or '{key}=[{value[1:-1]}]'"
    if "" in map(str.strip, value.split(",")):
        return f"{word}: there is nothing before or after a comma; remove that comma"
    remedy = "close its brackets, or quote" if re.search(r"[][(){}]", value) else "quote"
    quoted = "..." if re.search("[\"'`$\\\\]", value) else value.strip()
    return f"{word}: cannot be parsed; {remedy} the value within quotes: \"{key.strip()}='{quoted}'\""


def _split_by_spaces(word: str, words: Sequence[str]) -> str:
    """Return the override that ``word`` ends or continues, if commas or brackets show that it has spaces; else ""."""
    begins = [index for index, candidate in enumerate(words) if "=" in candidate or candidate.startswith("-")]
    for begin, end in pairwise([*begins, len(words)]):
        first, *rest = words[begin:end]
        opened, closed = first.endswith((",", "[", "{")), (*rest, "")[0].startswith(",")
        names = (key := first.partition("=")[0]) == "columns" or (CONF / key / f"{word}.yaml").is_file()
        if word in rest and (opened or closed or names or rest[-1].endswith(("]", "}"))):
            return " ".join([first, *rest])
    return ""


def _no_such_option(file: str, options: Sequence[str], folders: Sequence[Path], words: Sequence[str]) -> str:
    if file.startswith("workload/") and file.endswith(".cu"):
        return f"{file.replace('/', '=', 1)}: give a Python file that launches it by cuda_kernel (docs/cuda-files.md)"
    if typed := re.fullmatch(r"impl/(.+\.(py|cu)\b.*)", file):
        launch = ", a Python file that launches it by cuda_kernel (docs/cuda-files.md)" * (typed[2] == "cu")
        return f"impl={typed[1]}: write impl=file impl.path={re.sub('[.]cu', '.py', typed[1])}{launch}"
    group, _, name = file.partition("/")
    if file.startswith(EXPERIMENT) and "/" in name:
        group, _, name = file.rpartition("/")
        of = group[len(EXPERIMENT) :]
        return f"{group}={name}: no such option; in an experiment's defaults write: override /{of}: {name}"
    if name in ("*", "all"):
        return f"{group}={name}: no such option; for all of them write '{group}=glob(*)' -m"
    if group == "log" and name == "none":
        return "log=none: it turns off all loggers; write it alone, or leave it out"
    if group == "workload" and Path(name).is_dir():
        return f"workload={name}: no such option; workload={name}/ takes the tasks in that folder"
    if group == "workload" and Path(f"{name}.py").is_file():
        return f"workload={name}: no such option; write workload={name}.py for that file"
    available = {option.rpartition("/")[2] for option in options}
    chosen = next((word.partition("=")[2].split(",") for word in words if word.startswith("workload=")), [])
    if group == "impl" and all(re.fullmatch(r"[\w.]+", workload) for workload in chosen):
        known = [path.stem for folder in folders for path in folder.glob("workload/*.yaml")]
        if unknown := [workload for workload in chosen if workload not in known and not own_file.is_own(workload)]:
            return _no_such_option(f"workload/{unknown[0]}", known, folders, ())  # it may be one of its functions
        kernels = {workload: kernel_names(workload) for workload in chosen}
        if chosen and all(names or own_file.is_own(workload) for workload, names in kernels.items()):
            functions = {option.removesuffix(".yaml") for of, option in offered() if of == group}
            available -= set(kernel_names()).difference(functions, *kernels.values())
    return f"{group}={name}: no such option; {choices(name, available)}"


def _bad_field(cause: OmegaConfBaseException, folders: Sequence[Path]) -> str:
    key, parent, text = str(cause.full_key), cause.parent_node, str(cause.msg or cause).splitlines()[0]
    if text.startswith("Cannot merge DictConfig"):
        return f"{key}: takes fields with their values, as in '{key}={{name:value}}'"
    if "not in struct" not in text or not isinstance(parent, DictConfig):
        return f"{key}: {text}"
    fields = [str(field) for field in parent if field != "hydra"]
    group, _, name = key.partition(".")
    if group in SEVERAL and (CONF / group / f"{name}.yaml").exists():
        return f"{key}: not chosen; name it, as in '{group}=[{','.join(sorted({name, *fields}))}]'"
    if not fields:
        return f"{key}: no such field yet; add it, as in +{key}=..."
    rest = _meant(key, parent, folders) or f"no such field; {choices(str(cause.key), fields)}"
    return f"{key}: {rest}"


def _meant(key: str, parent: DictConfig, folders: Iterable[Path]) -> str:
    """Return the place of a field with the name of ``key``, as the rest of the sentence ``key: ...``, else "".

    ``parent`` is the node that has no field ``key``; ``folders`` hold the groups.
    """
    chosen, name = parent._get_root(), key.rpartition(".")[2]
    assert isinstance(chosen, DictConfig)
    if key == "workload.path":
        return "a workload in a file is chosen by workload=FILE, as in workload=rms_norm.py"
    if key == "workload.ranks" and "path" in parent:
        return "no such field; a file has it if one of its functions has a parameter rank or world_size"
    if key == name and having_argument(name, [str(chosen.workload.name)]):
        return f"no such field; did you mean impl.args.{name}?"
    others = {} if key.startswith("workload.") and "path" in parent else _fields(folders)  # a file's fields are its own
    fields = {field: owner for field, owner in others.items() if field.rpartition(".")[2] == name}
    if key in fields:
        group, options = fields[key]
        option = chosen.get(group)
        choice = f"{group}={option.get('name')}" if isinstance(option, DictConfig) else group
        have, meant = "has" if len(options) == 1 else "have", " or ".join(f"{group}={other}" for other in options[:2])
        own = ", ".join(sorted(str(field) for field in parent if field not in ("name", *BESIDE)))
        listed = f"; its fields: {own}" * bool(own)
        return f"{choice} has no such field; {', '.join(options)} {have}: {meant}{listed}"
    nearby = sorted(path for path in _paths(chosen, "") if path.rpartition(".")[2] == name and ".axes." not in path)
    elsewhere = [f"{field}, of {group}={','.join(options)}" for field, (group, options) in fields.items()]
    return f"no such field; did you mean {' or '.join(nearby or elsewhere)}?" if nearby or elsewhere else ""


def _fields(folders: Iterable[Path]) -> dict[str, tuple[str, list[str]]]:
    """Return the fields of all options, as ``workload.layers``, with their group and the options that have them."""
    by_field: dict[str, tuple[str, list[str]]] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.yaml"))):
        try:
            text = path.read_text(encoding="utf-8")
            values = read_yaml(text)
        except YAML_ERRORS:
            continue  # reported where it is chosen
        header, group = PACKAGE.search(text), path.parent.name
        package = header[1] if header else group
        # Experiments repeat fields of other groups, and the fields of a set of shapes are names of workloads.
        if package != "_global_" and group != "shapes" and isinstance(values, dict):
            for name in (name for name in values if name not in ("name", *BESIDE)):
                options = by_field.setdefault(f"{package}.{name}", (group, []))[1]
                if path.stem not in options:
                    options.append(path.stem)
    return by_field


def _paths(config: DictConfig, prefix: str) -> Iterator[str]:
    """Yield every field of ``config``, at all depths."""
    for name in map(str, config):
        if prefix or name != "hydra":
            yield f"{prefix}{name}"
            inner = config._get_node(name)
            if isinstance(inner, DictConfig) and not inner._is_none() and name != "quick":  # copies of other fields
                yield from _paths(inner, f"{prefix}{name}.")

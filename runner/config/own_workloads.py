"""``workload=rms_norm.py``: options of Hydra for workloads in files of the user's, and for the functions in them."""

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from ..records.bad_input import BadInput
from ..records.options import has_option
from ..tasks import formats, own_file
from ..tasks.own_file import OwnFile

WORKLOAD, PATH = "workload", "workload.path"
# Of task files, each with an example.
FORMATS = {
    "file": "rms_norm.py",
    "kernelbench": "level1/40_LayerNorm.py",
    "flashinfer": "rmsnorm/definition.json",
    "popcorn": "vectoradd_py/task.yml",
}
NAMELESS = {"definition.json": ".json", "task.yml": ".task"}  # called so in each task → what ends its name
PROVIDER = "own file"  # named by Hydra as the source of these options
ITEM = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")  # of a sweep; quotes keep a comma
NAMED = re.compile(r"""^path:[ ]*["']?([^"'#\n]+?)["']?[ ]*(?:#.*)?$""", re.MULTILINE)  # a file that a YAML file names


def registered(words: Sequence[str]) -> list[str]:
    """Return the command line with the option's name in place of each file, after the options are known to Hydra.

    ``workload=file workload.path=a.py`` is the long form of ``workload=a.py``; a name of ``FORMATS`` also says how the
    file is written. A folder or a glob means all tasks in it; one that cannot be read costs only its own rows.
    Where no implementation is named, it is ``reference``, since the usual one is of shipped workloads. Raises BadInput.
    """
    given = {key: value for key, _, value in (word.partition("=") for word in words)}
    if (form := given.get(WORKLOAD, "")) in FORMATS:
        if not (path := given.get(PATH)):
            raise BadInput(f"workload={form}: say which, as in workload={form} workload.path={FORMATS[form]}")
        long, short = f"{WORKLOAD}={form}", f"{WORKLOAD}={path}"
        words = [short if word == long else word for word in words if word != f"{PATH}={path}"]
    chosen = [word for word in words if word.startswith(f"{WORKLOAD}=")]
    typed = {word: [item.strip("'\"") for item in ITEM.findall(word.partition("=")[2])] for word in chosen}
    # A word with a slash is a path; one without may be a shipped workload.
    paths = {item for values in typed.values() for item in values if form in FORMATS or "/" in item}
    typed = {word: [formats.as_place(x) if x in paths else x for x in values] for word, values in typed.items()}
    found = {item: formats.find(item) for values in typed.values() for item in values if formats.is_place(item)}
    if (count := len(set(chain.from_iterable(found.values())))) > 1 and not {"-m", "--multirun"} & set(words):
        raise BadInput(f"workload={', '.join(found)}: {count} tasks make a sweep; add -m")
    items = {word: [path for item in values for path in found.get(item, [item])] for word, values in typed.items()}
    files = [item for values in items.values() for item in values if item in paths or own_file.is_own(item)]
    names = {path: _option_name(path, files) for path in files}
    sets: dict[str, dict[str, Any]] = {}  # name of a set of shapes → its values
    for path, name in names.items():
        file = own_file.read(path, strict=not any(path in place for place in found.values()))
        if form in FORMATS and form != "file" and file.format != form and not file.refused:
            raise BadInput(f"{path}: written for workload={file.format}, not for workload={form}")
        store(WORKLOAD, {"name": name, **defaults(file)})
        for label, cases in file.shapes.items():
            sets.setdefault(label, {})[name] = cases
        _offer_functions(file)
    for label, by_name in sets.items():
        store("shapes", {"name": label, **by_name}, package=f"shapes.{label}")
    renamed = {word: f"{WORKLOAD}={','.join(names.get(item, item) for item in items[word])}" for word in chosen}
    words = [renamed.get(word, word) for word in words]
    keys = {word.partition("=")[0].lstrip("+/") for word in words}
    only_files = bool(files) and all(map(own_file.is_own, chain.from_iterable(items.values())))
    return [*words, "impl=reference"] if only_files and not keys & {"impl", "experiment"} else words


def _option_name(path: str, others: Sequence[str]) -> str:
    """Return the name of the option: the file's, with its folders if another file is called the same."""
    name = _own_name(path)
    alike = {str(Path(other)) for other in others if _own_name(other) == name}
    folders = Path(path).parts[: -2 if Path(path).name in NAMELESS else -1] if len(alike) > 1 else ()
    return re.sub(r"[^\w.]", "_", ".".join([*folders, name]))


def _own_name(path: str) -> str:
    """Return the name of a file, or that of its folder where each task has files of the same names."""
    file = Path(path)
    return f"{file.resolve().parent.name}{NAMELESS[file.name]}" if file.name in NAMELESS else file.name


def register_named(config_dir: Path) -> None:
    """Offer the functions of files that YAML files of the user name, as in ``path: rms_norm.py``. Raises BadInput."""
    for file in sorted(config_dir.glob(f"{WORKLOAD}/*.yaml")):
        with suppress(OSError):  # Hydra says what is wrong, if the file is chosen
            if named := NAMED.search(file.read_text(encoding="utf-8", errors="replace")):
                _offer_functions(own_file.read(named[1]))


def complete(config: DictConfig) -> None:
    """Add the fields of the file that a YAML file names, with their defaults, to the workload of ``config``."""
    workload = config.get(WORKLOAD)
    if isinstance(workload, DictConfig) and isinstance(path := workload.get("path"), str):
        named = own_file.is_own(str(workload.name))  # on the command line, not in a YAML file
        name = workload.name if named else Path(path).name
        file = own_file.read(path, strict=not named)
        fields: dict[Any, Any] = {**defaults(file), **dict(workload.items_ex(resolve=False))}
        config[WORKLOAD] = OmegaConf.create(fields | {"name": name})


def forget() -> None:
    """Withdraw the options of all files, which an earlier command line of this process has named."""
    for group, name in offered():
        del ConfigStore.instance().repo[group][name]


def offered() -> list[tuple[str, str]]:
    """Return the group and the name of each option of a file."""
    repo = {group: ConfigStore.instance().repo.get(group, {}) for group in (WORKLOAD, "impl", "shapes")}
    return [(group, name) for group, nodes in repo.items() for name, node in nodes.items() if node.provider == PROVIDER]


def _offer_functions(file: OwnFile) -> None:
    for function in file.implementations:
        if has_option("implementations", function):
            raise BadInput(f"{file.path}: impl={function} is there for every workload; rename the function")
        store("impl", {"name": function, "path": None, "args": {}, "rev": None})


def store(group: str, node: Mapping[str, Any], provider: str = PROVIDER, package: str | None = None) -> None:
    """Offer an option of ``group``, called ``node["name"]``, without a YAML file, or to be merged with one."""
    warnings.filterwarnings("ignore", r"\s*'(impl|shapes)/.+' is validated against ConfigStore schema")  # by Hydra
    ConfigStore.instance().store(group=group, name=node["name"], node=dict(node), provider=provider, package=package)


def defaults(file: OwnFile) -> dict[str, Any]:
    """Return the fields of a workload in ``file``, with their defaults."""
    usual: Mapping[str, Any] = {"dtype": file.dtype, "tf32": False, "pass": "fwd", "layout": "contiguous"}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in file.fields.items()}
    return {"path": file.path, **fields, **usual, "shape": file.sizes, "axes": dict(file.axes)}

"""Find the class of an option: the module has the option's name, and the class the module's."""

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

PACKAGE = __name__.partition(".")[0]  # the package whose modules the options are
CONF = Path(__file__).parents[1] / "config" / "conf"  # a link to conf/, or its copy in an installed package


@cache
def has_option(package: str, name: str) -> bool:
    """Return whether ``package`` of this project has the option ``name``: a module without a leading underscore."""
    if not name.isidentifier() or name[0] == "_":
        return False
    try:
        return find_spec(f"{PACKAGE}.{package}.{name}") is not None
    except ModuleNotFoundError:  # there is no such package, as kernels/ has none of a new workload
        return False


@cache
def option_defaults(file: str) -> dict[str, Any]:
    """Return the fields of a YAML of ``conf/``; none if it is not there, as for an option of another machine."""
    import yaml

    try:
        return dict(read_yaml((CONF / f"{file}.yaml").read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def read_yaml(text: str) -> Any:
    """Return what a YAML text holds, by libyaml where PyYAML has it: in a tenth of the time. Raises YAMLError."""
    import yaml  # bench does without it

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def option_names(package: str) -> list[str]:
    """Return the names of the options of ``package``. Only the package is imported."""
    modules = iter_modules(import_module(f"{PACKAGE}.{package}").__path__)
    return sorted(module.name for module in modules if module.name[0] != "_")


def option_summaries(package: str) -> dict[str, str]:
    """Return the first line of the docstring of each option of ``package``, by its name. No option is imported."""
    summaries = {}
    for name in option_names(package):
        spec = find_spec(f"{PACKAGE}.{package}.{name}")
        with open(spec.origin if spec and spec.origin else os.devnull, encoding="utf-8") as file:
            summaries[name] = file.readline().strip().strip('"')
    return summaries


def option_class(package: str, name: str, *methods: str) -> type:
    """Return the class of the module ``name`` of ``package`` that is called like the module, in CamelCase.

    Raises LookupError, which names the file, if there is no such module or class, it cannot be imported, it is not a
    dataclass of its own, or it lacks one of ``methods``.
    """
    file = f"runner/{package.replace('.', '/')}/{name}.py"
    if not has_option(package, name):
        raise LookupError(f"no file {file}")
    try:
        module = import_module(f"{PACKAGE}.{package}.{name}")
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise LookupError(f"{file}{line}: {type(error).__name__}: {getattr(error, 'msg', None) or error}") from error
    wanted = name.replace("_", "")
    for attribute, cls in vars(module).items():
        if attribute.lower().rstrip("_") == wanted and isinstance(cls, type):
            break
    else:
        raise LookupError(f"no class called {wanted} in {file}")
    if "__dataclass_fields__" not in vars(cls):  # inherited fields are not all of them
        raise LookupError(f"class {cls.__name__} in {file} must be a dataclass whose fields are those of its YAML")
    missing = {*getattr(cls, "__abstractmethods__", ()), *(method for method in methods if not hasattr(cls, method))}
    if missing:
        raise LookupError(f"class {cls.__name__} in {file} must also have {', '.join(sorted(missing))}")
    return cls

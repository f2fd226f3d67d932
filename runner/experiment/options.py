"""The class behind an option of a config group, found by path: ``impl=compiled`` is ``runner.implementations.compiled.Compiled``.

Nothing is registered: to add an option is to add a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

CONF = (
    Path(__file__).parents[1] / "config" / "conf"
)  # the folder conf/ of the repository, or its copy in an installed package


def exists(package: str, name: str) -> bool:
    """True if ``package`` has a module called ``name``; nothing is imported but the package."""
    return name.isidentifier() and find_spec(f"{package}.{name}") is not None


def names(package: str) -> list[str]:
    """The modules that ``package`` has; nothing is imported but the package."""
    return sorted(module.name for module in iter_modules(import_module(package).__path__))


def find(package: str, name: str, *must: str) -> type:
    """The class of module ``package.name`` that is called as the module is, in CamelCase; it has the methods ``must``.

    Raises:
        LookupError: there is no such module or class, it cannot be imported, or no instance can be made of it; the
            message names the file.

    """
    file = f"{package.replace('.', '/')}/{name}.py"
    if not exists(package, name):
        raise LookupError(f"no file {file}")
    try:
        module = import_module(f"{package}.{name}")
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise LookupError(f"{file}{line}: {type(error).__name__}: {getattr(error, 'msg', None) or error}") from error
    wanted = name.replace("_", "")
    for attribute, value in vars(module).items():
        if attribute.lower().rstrip("_") == wanted and isinstance(value, type):
            _check(value, file, must)
            return value
    raise LookupError(f"no class called {wanted} in {file}")


def _check(cls: type, file: str, must: Iterable[str]) -> None:
    """Raise LookupError unless instances of ``cls`` can be made, by its own fields, and can do what they ``must``."""
    if "__dataclass_fields__" not in vars(cls):  # a base's are not all of them
        raise LookupError(f"class {cls.__name__} in {file} must be a dataclass whose fields are those of its YAML")
    lacking = sorted({*getattr(cls, "__abstractmethods__", ()), *(name for name in must if not hasattr(cls, name))})
    if lacking:
        raise LookupError(f"class {cls.__name__} in {file} must also have {', '.join(lacking)}")

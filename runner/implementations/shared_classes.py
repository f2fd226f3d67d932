"""Classes that all copies of a user's file have in common: enumerations, configurations.

A worker imports a workload's file apart from its implementations. What ``inputs`` makes there must be of the class that
an implementation knows by that name: ``isinstance(config, Config)``, ``config.act is Act.SILU``. A class is shared if
all that it uses is the same in each copy: other such classes, imports, constants and types. Modules and functions of
autograd are not shared, since users replace their methods. Where a case replaces one of a shared class, its worker
ends. Nor is a class that is a cache, a counter or a registry: the reference would use what an implementation leaves.
"""

import ast
import builtins
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress

from ..records.grouping import reachable
from ..tasks.syntax import assigned, constant, decorators
from .arguments import global_names

OF_TORCH = ("Module", "Function")  # bases
# Sources of containers to be filled, and of types such as torch.Tensor | None and TypeVar('T')
EMPTY = re.compile(r"\{\}|\[\]|(\w+\.)*(set|list|dict|deque|\w+[dD]ict|\w+Dictionary)\(\w*\)")
OF_TYPES = re.compile(r"[A-Za-z_][\w.]*([\[\], |]+[\w.]+)*\]*|(typing\.)?(TypeVar|ParamSpec)\('\w+'\)")
CACHED = {"cache", "lru_cache"}  # decorators

_classes: dict[str, type] = {}  # by a digest of what defines them
_methods: dict[type, dict[str, object]] = {}  # of these classes, as they were defined


def shared(digest: str, cls: type | None = None) -> type:
    """Return the class with ``digest`` of the copy that was imported first: ``cls``, if it is that one."""
    if cls and digest not in _classes:
        _classes[digest], _methods[cls] = cls, _methods_of(cls)
    return _classes[digest]


def replaced_methods() -> list[str]:
    """Return the names of methods of shared classes that are not as they were, such as ``Config.scale``."""
    names = []
    for cls, were in _methods.items():
        now = _methods_of(cls)
        names += [f"{cls.__name__}.{name}" for name in {*were, *now} if were.get(name) is not now.get(name)]
    return sorted(names)


def _methods_of(cls: type) -> dict[str, object]:
    kinds = (staticmethod, classmethod, property)
    return {name: value for name, value in vars(cls).items() if callable(value) or isinstance(value, kinds)}


def share_classes(tree: ast.Module, name: str, package: str) -> None:
    """Let the file ``name`` with ``tree``, in ``package``, take such classes from the copy that was imported first."""
    if not any(isinstance(node, ast.ClassDef) for node in tree.body):
        return
    uses = {node: global_names(node) for node in tree.body}
    makers: dict[str, list[ast.stmt]] = {}  # of each global name
    known: set[str] = set()  # classes of an earlier copy
    for node, (bound, _) in uses.items():
        for each in bound:
            makers.setdefault(each, []).append(node)
        for each in [name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names]:
            makers.setdefault(each, []).append(ast.Pass())  # a function sets it

    def used(node: ast.stmt) -> Iterator[ast.stmt]:
        for each in sorted(uses[node][1]) if isinstance(node, ast.ClassDef | ast.Assign) else ():
            is_same = hasattr(builtins, each) and each != "globals" and not each.startswith("__")
            yield from makers.get(each, [] if is_same else [ast.Pass()])  # perhaps of an import *

    def digest_of(node: ast.stmt) -> str:
        """Return the digest of what defines a class that is shared; "" for another statement."""
        starts: list[ast.stmt] = [node]
        if not isinstance(node, ast.ClassDef) or makers[node.name] != [node]:
            return ""
        if not all(map(_is_fixed, reached := reachable(starts, used))):
            return ""
        # The package says what they import.
        is_relative = any(getattr(part, "level", 0) for each in reached for part in ast.walk(each))
        text = "".join([name, package * is_relative, *map(ast.dump, reached)])
        return hashlib.sha256(text.encode()).hexdigest()

    def is_done(node: ast.stmt) -> bool:
        """Return whether an imported function gets a known class: torch.export.register_dataclass takes it once."""
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or known.isdisjoint(uses[node][1]):
            return False
        by = makers.get(ast.unparse(node.value.func).partition(".")[0], [])
        return bool(by) and all(isinstance(maker, ast.Import | ast.ImportFrom) for maker in by)

    body: list[ast.stmt] = []
    for node in tree.body:
        digest = digest_of(node)
        if digest not in _classes:  # else it is not defined again, as one more of Base.__subclasses__()
            body.append(node)
        if digest and isinstance(node, ast.ClassDef):
            known |= {node.name} if digest in _classes else set()
            words = repr(digest) if digest in _classes else f"{digest!r}, {node.name}"
            body += ast.parse(f"{node.name} = __import__({__name__!r}, fromlist=['shared']).shared({words})").body
    tree.body = [node for node in body if not is_done(node)]


def _is_fixed(node: ast.stmt) -> bool:
    """Return whether a statement at the top of a file defines the same in each copy of it."""
    match node:
        case ast.ClassDef(bases=bases):
            return not _keeps(node) and not any(ast.unparse(base).rpartition(".")[2] in OF_TORCH for base in bases)
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(value=ast.expr() as value) | ast.AnnAssign(value=ast.expr() as value):
            if isinstance(node, ast.Assign) and OF_TYPES.fullmatch(ast.unparse(value)):
                return True
            with suppress(ValueError):
                return not isinstance(constant(value), list)
    return False


def _keeps(cls: ast.ClassDef) -> bool:
    """Return whether ``cls`` is a cache, a counter or a registry: it has something of its own that calls change."""
    parts = [*ast.walk(cls)]
    values = [ast.unparse(value) for node in cls.body for _, value in assigned(node) if value]
    is_filled = any(map(EMPTY.fullmatch, values))
    is_cached = any(decorators(part) & CACHED for part in parts if isinstance(part, ast.FunctionDef))
    stores = [part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)]
    owners = {"cls", "type(self)", "self.__class__", cls.name}
    is_set = not owners.isdisjoint(ast.unparse(each.value) for each in stores)
    return is_filled or is_cached or is_set or any(isinstance(part, ast.Global) for part in parts)

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
from ..tasks.syntax import constant
from .arguments import global_names

OF_TORCH = ("Module", "Function")  # bases
# Sources of containers to be filled, of types such as torch.Tensor | None and TypeVar('T'), and of decorators
EMPTY = re.compile(r"\{\}|\[\]|(\w+\.)*(set|list|dict|deque|\w+[dD]ict|\w+Dictionary)\(\w*\)")
OF_TYPES = re.compile(r"[A-Za-z_][\w.]*([\[\], |]+[\w.]+)*\]*|(typing\.)?(TypeVar|ParamSpec)\('\w+'\)")
CACHED = re.compile(r"(functools\.)?(lru_)?cache(\(.*\))?")

_classes: dict[str, type] = {}  # by a digest of what defines them
_methods: dict[type, dict[str, object]] = {}  # of these classes, as they were defined


def shared(digest: str, cls: type | None = None) -> type:
    """Return the class with ``digest`` of the copy that was imported first: ``cls``, if it is that one."""
    if cls and digest not in _classes:
        _classes[digest], _methods[cls] = cls, _methods_of(cls)
    return _classes[digest]


def replaced_methods() -> list[str]:
    """Return the names of methods of shared classes that are not as they were, such as ``Cache.update``."""
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

    for place, node in reversed([*enumerate(tree.body, 1)]):
        starts: list[ast.stmt] = [node]
        if not isinstance(node, ast.ClassDef) or makers[node.name] != [node]:
            continue
        if all(map(_is_fixed, reached := reachable(starts, used))):
            # The package says what they import.
            is_relative = any(getattr(part, "level", 0) for each in reached for part in ast.walk(each))
            text = "".join([name, package * is_relative, *map(ast.dump, reached)])
            digest = hashlib.sha256(text.encode()).hexdigest()
            call = f"{node.name} = __import__({__name__!r}, fromlist=['shared']).shared({digest!r}, "
            if digest in _classes:  # not defined again, as one more of Base.__subclasses__()
                known.add(node.name)
                tree.body[place - 1 : place] = ast.parse(f"{call})").body
            else:
                tree.body[place:place] = ast.parse(f"{call}{node.name})").body
    for node, (_, read) in uses.items():
        # A library takes a class once: torch.export.register_dataclass(Output)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and read & known:
            by = makers.get(ast.unparse(node.value.func).partition(".")[0], [])
            if by and all(isinstance(maker, ast.Import | ast.ImportFrom) for maker in by):
                tree.body.remove(node)


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
    values = [
        ast.unparse(each.value) for each in cls.body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value
    ]
    decorators = [
        ast.unparse(each) for part in parts if isinstance(part, ast.FunctionDef) for each in part.decorator_list
    ]
    stores = [part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)]
    is_set = not {"cls", "type(self)", "self.__class__", cls.name}.isdisjoint(
        ast.unparse(each.value) for each in stores
    )
    is_filled = any(map(EMPTY.fullmatch, values)) or any(map(CACHED.fullmatch, decorators))
    return is_set or is_filled or any(isinstance(part, ast.Global) for part in parts)

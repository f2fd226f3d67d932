"""What lies beside a user's file is imported for that file, and for no other one that lies elsewhere.

Python knows one module of a name. Two folders may each have a ``helper.py``, and functions of both are compared in one
process: so one folder at a time is on ``sys.path``, and what came from the others is out of ``sys.modules``. A folder's
turn is when a file of it is loaded, and when code that came from it imports something later, as it is called. What is
imported by a computed name then (``importlib.import_module``) comes from the folder whose turn was last.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

_kept: dict[str, dict[str, ModuleType]] = {}  # folders that had a turn; the modules of those that have none now
_turn = ""  # whose it is
_loaded: dict[str, str] = {}  # the folder of each file that was loaded, whatever link led to it
_owners: dict[str, str] = {}  # the same of all files whose code has imported something; "": none of these folders
_import = builtins.__import__


def turn_to(folder: str, file: str = "") -> None:
    """From here on what lies in ``folder`` can be imported, after all else that can; ``file`` is loaded from there.

    A folder that is on ``sys.path`` anyhow is everybody's.
    """
    global _turn
    if _turn != folder:
        _end_turn()
    if folder not in sys.path:
        sys.path.append(folder)
        sys.modules.update(_kept.get(folder, {}))
        if folder not in _kept:  # what was nobody's may be its own
            _owners.clear()
            _owners.update(_loaded)
        _turn, _kept[folder] = folder, {}
    if _turn == folder and file:
        _loaded[file] = _owners[file] = folder
    if len(_kept) > 1:  # before that nobody's imports need to be told apart
        builtins.__import__ = _import_in_turn


def _end_turn() -> None:
    global _turn
    if _turn:
        sys.path[:] = [path for path in sys.path if path != _turn]  # its own code may have added it once more
        ours = {name for name, module in sys.modules.items() if "." not in name and _folder(module) == _turn}
        names = [name for name in sys.modules if name.partition(".")[0] in ours]
        _kept[_turn] = {name: sys.modules.pop(name) for name in names}
        _turn = ""


def _folder(module: object) -> str:
    """In which ``module``, of no package, was found; "" if in none."""
    names = vars(module) if isinstance(module, ModuleType) else {}
    places = [*names["__path__"]] if "__path__" in names else [names.get("__file__")]
    return os.path.dirname(places[0]) if places and isinstance(places[0], str) else ""


def _import_in_turn(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """``__import__``; for code of a user's folder in its turn. It takes 0.4 us longer, in such a process alone."""
    if globals and (folder := _owner(globals)) and folder != _turn:
        turn_to(folder)
    return _import(name, globals, locals, fromlist, level)


def _owner(names: Mapping[str, Any]) -> str:
    """The folder that the code of a module with ``names`` came from."""
    file = names.get("__file__")
    if not isinstance(file, str):
        return ""
    if file not in _owners:
        top = str(names.get("__name__")).partition(".")[0]
        begins = {folder: (os.path.join(folder, f"{top}."), os.path.join(folder, top, "")) for folder in _kept}
        _owners[file] = next((folder for folder, begin in begins.items() if file.startswith(begin)), "")
    return _owners[file]

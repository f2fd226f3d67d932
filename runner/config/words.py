"""Translate words of the command line into Hydra's grammar."""

import json
import os
import re
from collections.abc import Mapping

from . import grid

REVISION = "impl.rev"
ARGUMENT = "impl.args."
PLAIN = re.compile(r"[A-Za-z_][\w./:-]*")  # what Hydra reads as a string without quotes
OTHERS = ("true", "false", "null", "nan", "inf")  # what it reads as something else
HOME = re.compile(r"(?:(?<=[,\['\"])|^)~/")
DIGITS = re.compile(r"[\d_.eE+-]+")  # Hydra reads 1_1 as 11
LISTS = ("resume.retry", "resume.ignore", "columns")


def normalize(word: str) -> str:
    """Return ``word`` in Hydra's grammar.

    ``resume=X`` becomes ``resume.of='X'``, lists may be written ``a,b``, and ``log=none`` is the empty list. Labels
    such as ``compiled(of=torch)`` are quoted, since Hydra reads them as function calls, and so are revisions. Axes are
    added, since there are none to override. ``{}`` becomes null, since merging ``{}`` changes nothing. A name is text,
    and ``~/`` at the beginning of a value is the home directory, as a shell has it for words of their own.
    """
    key, equals, value = word.partition("=")
    if not equals:
        return word  # Hydra refuses it
    value = HOME.sub(os.path.expanduser("~/"), value)
    word = f"{key}={value}"
    if key == "name" and DIGITS.fullmatch(value):
        return f"{key}={quote(value)}"
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

    Hydra's grammar has neither ``~`` nor ``^``, and reads the commit ``1234567`` as a number. Quoted values, null,
    lists and functions of that grammar are not changed.
    """
    key, _, value = word.partition("=")
    names = value.split(",")
    if not all(names) or any(sign in value for sign in "'\"[]()"):
        return word
    return f"{key}={','.join(name if name == 'null' else quote(name) for name in names)}"


def in_hydra(value: object) -> str:
    """Return ``value`` in Hydra's grammar. A string is quoted if it could be read as something else."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{in_hydra(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(in_hydra, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    return value if PLAIN.fullmatch(value) and value.lower() not in OTHERS else quote(value)


def quote(value: str) -> str:
    """Return ``value`` as a quoted string of Hydra's grammar."""
    return "'" + value.replace("'", r"\'") + "'"

"""Read a task file of any format as a workload in one file: its syntax tree, without running it."""

import ast
import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..records.bad_input import BadInput
from ..records.schema import RANKED
from . import flashinfer, kernelbench, popcorn

FILLED = ("dtype", "device", "generator", "seed", *RANKED)  # parameters of ``inputs`` that the runner gives
SHARED = ("dtype", "tf32", "pass", "layout")  # fields of every own workload that may be swept
RESERVED = ("path", *SHARED, "shape", "axes", "name")  # fields that every own workload has
GPU = re.compile(r"cuda(:\d+)?")
PARTS = re.compile(r"(\D*)(\d*)")
TASKS = {  # suffix → what a file has that may be a task, though one with a mistake
    ".py": re.compile(r"(?ms)(?=.*^class Model\b)(?=.*^def get_inputs\b)|(?=.*^def inputs\b)(?=.*^def reference\b)"),
    ".yml": re.compile(r"(?ms).*(?:@SUBMISSION@|^files:)"),
    ".json": re.compile(r"(?s)(?=.*\"axes\")(?=.*\"outputs\")(?=.*\"reference\")"),
}


@dataclass(frozen=True)
class Task:
    """A task in the form of a workload in one file."""

    format: str  # "file": it is written so
    tree: ast.Module
    filename: str  # in which its functions are
    source: str = ""  # text of its functions, if it is not that of a file
    shapes: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)  # if they are not in the tree


def parse(path: str | Path) -> Task:
    """Return the task in a file. Raises OSError, SyntaxError or ValueError."""
    if str(path).endswith(".json"):
        source, added = flashinfer.text_of(Path(path), (*FILLED, *RESERVED))
        return Task("flashinfer", _joined(ast.parse(source), added), f"{path}:reference", source)
    if str(path).endswith(".yml"):
        reference = popcorn.reference_of(Path(path))
        tree = ast.parse(reference.read_bytes(), str(reference))
        return Task("popcorn", _joined(tree, popcorn.text_of(Path(path), tree, (*FILLED, *RESERVED))), str(reference))
    tree = ast.parse(Path(path).read_bytes(), str(path))
    is_own = {"inputs", "reference"} <= {getattr(node, "name", "") for node in tree.body}
    if not is_own and kernelbench.fits(tree):
        sets = kernelbench.sets_of(Path(path))
        first = next((case for cases in sets.values() for case in cases), {})
        return Task("kernelbench", kernelbench.one_file(tree, (*FILLED, *RESERVED), first), str(path), shapes=sets)
    return Task("file", tree, str(path))


def _joined(tree: ast.Module, text: str) -> ast.Module:
    return ast.Module([*tree.body, *ast.parse(text).body], tree.type_ignores)


def is_place(word: str) -> bool:
    """Return whether a word means all tasks in a folder, or of a glob."""
    return (glob.has_magic(word) and word[0] != "[") or word.endswith("/")  # [a,b] is a list


def as_place(path: str) -> str:
    """Return ``path`` with a slash at its end if it is a folder."""
    return os.path.join(path, "") if os.path.isdir(path) else path


def find(place: str) -> list[str]:
    """Return the task files in a folder, at any depth, or those that a glob names, as people count: 2 before 10.

    Raises BadInput if there are none.
    """
    paths = glob.glob(os.path.join(place, "**", "*") if place.endswith("/") else place, recursive=True)
    found = [
        path
        for path in paths
        if (pattern := TASKS.get(os.path.splitext(path)[1]))
        and os.path.isfile(path)  # the folder of a run may be called as a task
        and pattern.match(Path(path).read_text(errors="replace"))
    ]
    if not found:
        raise BadInput(f"workload={place}: no task is there; name a folder or a glob with tasks, as in level1/*.py")
    return sorted(found, key=lambda path: [(text, int(number or -1)) for text, number in PARTS.findall(path)])


def gpu_line(path: str) -> int:
    """Return the line of a file that names a GPU, unless it asks whether there is one; 0 without any."""
    nodes = list(ast.walk(parse(path).tree))
    words = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    if any(word.endswith("is_available") for word in words):
        return 0
    named = (
        node
        for node in nodes
        if (isinstance(node, ast.Constant) and GPU.fullmatch(str(node.value)))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda")
    )
    return min((node.lineno for node in named), default=0)

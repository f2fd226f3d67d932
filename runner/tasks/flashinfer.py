"""Tasks of flashinfer-bench and SOL-ExecBench: ``definition.json``, with ``workload.jsonl`` beside it.

    inputs(axes and scalars..., line=0) -> the inputs of the definition, as the line of the JSONL file says
    reference(*inputs) -> run(*inputs)      # of the definition; several outputs are a dict by their names

Axes that vary and scalars are fields. The lines are the set of shapes ``lines``; they may have a tolerance.
"""

import ast
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

USUAL = 16  # size of an axis that no line gives
ONE_FILE = """
_LINES, _ROOTS = {lines!r}, {roots!r}

def inputs({fields}, *, device):
    global _outputs
    import torch
    {computed}
    if not 0 <= {line} < max(1, len(_LINES)):
        raise IndexError(f"workload.line={{{line}}}: its lines are 0 to {{len(_LINES) - 1}}")
    sources = (_LINES or [dict()])[{line}].get("inputs", dict())
    _outputs = lambda: [torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                        for _, shape, dtype in [{outputs}]]
    custom = {custom}
    return tuple(custom[name] if name in custom else _drawn(name, shape, dtype, sources.get(name, dict()), device)
                 for name, shape, dtype in [{inputs}])

def _drawn(name, shape, dtype, source, device):
    import math, os, torch
    if shape is None:
        return dtype
    if _LINES and not source:  # its harness would draw random numbers without a word
        raise NotImplementedError(f"the line of its workload gives no {{name}}; for random numbers, write "
                                  f'"{{name}}": {{{{"type": "random"}}}} among its inputs')
    if source.get("type") == "safetensors":
        from safetensors.torch import load_file
        paths = [os.path.join(root, source["path"]) for root in _ROOTS]
        return load_file(next(filter(os.path.exists, paths), paths[0]))[source["tensor_key"]].to(device)
    kind = getattr(torch, dtype, None)
    if kind is None or dtype.startswith("float4"):
        raise NotImplementedError(f"{{name}}: no random numbers of type {{dtype}}")
    if not kind.is_floating_point:
        least, most = (0, 2) if kind == torch.bool else (-128, 128) if kind == torch.int8 else (-1024, 1024)
        return torch.randint(least, most, shape, dtype=kind, device=device)
    drawn = torch.randn(shape, device=device, dtype=torch.float64 if kind == torch.float64 else torch.float32)
    words = name.rstrip("0123456789").split("_")
    if len(shape) > 1 and words[-1] in ("weight", "weights", "proj", "projs"):
        drawn = drawn / math.sqrt(shape[-1])
    if words[-1] in ("std", "rstd", "var", "variance"):
        drawn = drawn.abs() + 0.1
    if name == "probs":
        drawn = drawn.softmax(-1)
    return (drawn.clamp(-2, 2) if kind.itemsize == 1 else drawn).to(kind)

def reference(*inputs):  # several outputs by name, as a solution may return them
    result, names = run(*inputs), {names!r}
    if isinstance(result, dict):
        return {{name: result[name] for name in names}}
    return dict(zip(names, result)) if isinstance(result, tuple | list) and len(result) == len(names) > 1 else result
reference.of_module = None

def _adapted(function):  # with the outputs as further arguments
    import inspect
    later, names = [*inspect.signature(function).parameters.values()][{count}:], {names!r}
    by_name = {{*names}} <= {{parameter.name for parameter in later}}
    required = [each for each in later if each.default is each.empty and each.kind <= each.POSITIONAL_OR_KEYWORD]
    if not by_name and len(required) != len(names):
        return function
    def call(*inputs):
        outputs = _outputs()
        function(*inputs, **dict(zip(names, outputs))) if by_name else function(*inputs, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    return call
"""
TOLERANCE = """
def tolerance(line=0): return {words!r}[line]
"""


def text_of(path: Path, reserved: Collection[str]) -> tuple[str, str]:
    """Return the source of the reference, and what makes it a workload in one file; of a solution, its source alone.

    A field has the name of its axis or scalar, after ``task_`` if that is ``reserved``. Raises OSError, ValueError.
    """
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
        if sources := {str(file["path"]): str(file["content"]) for file in definition.get("sources", [])}:
            if len(sources) > 1 or not min(sources).endswith(".py"):
                files = f"{', '.join(sources)} to files"
                raise ValueError(f"it is not one Python file: write {files}, and give impl.path=main.py:run")
            return min(sources.values()), ""
        return str(definition["reference"]), _one_file(path, definition, reserved)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a definition, or without a field: {error}") from None


def _one_file(path: Path, definition: Mapping[str, Any], reserved: Collection[str]) -> str:
    ancestors = path.resolve().parents
    named = [ancestors[0] / "workload.jsonl"]  # or in a dataset: definitions/<type>/<name>, workloads/<type>/<name>
    named += [ancestors[2] / "workloads" / ancestors[0].name / f"{path.stem}.jsonl"] if len(ancestors) > 2 else []
    texts = next((file.read_text(encoding="utf-8").splitlines() for file in named if file.is_file()), [])
    lines = [line.get("workload", line) for line in map(json.loads, filter(str.strip, texts))]
    axes, inputs = definition["axes"], definition["inputs"]
    vary = {name for name, axis in axes.items() if axis["type"] == "var"}
    for number, line in enumerate(lines):
        if lacking := sorted(vary - line.get("axes", {}).keys()):
            raise ValueError(f"line {number} of its workload gives no {', '.join(lacking)}")
    cases = [_values(definition, line) for line in lines] or [_values(definition, {})]
    fields = {name: f"task_{name}" if name in reserved else name for name in cases[0]}
    constants = [f"{name} = {field}" for name, field in fields.items() if name != field]
    constants += [f"{name} = {axis['value']!r}" for name, axis in axes.items() if axis["type"] == "const"]
    expressions = {name: str(axis["expression"]) for name, axis in axes.items() if axis["type"] == "expr"}
    computed = [f"{name} = {ast.unparse(ast.parse(text, mode='eval'))}" for name, text in expressions.items()]
    entry = definition.get("custom_inputs_entrypoint")
    given = "".join(f"{name!r}: {name}, " for name in [*axes, *(name for name in inputs if name in cases[0])])
    is_custom = entry and any(source.get("type") == "custom" for line in lines for source in line["inputs"].values())
    text = ONE_FILE.format(
        lines=lines,
        roots=list(map(str, ancestors)),
        fields=", ".join(
            [*(f"{fields[name]}={value!r}" for name, value in cases[0].items()), *["line=0"] * bool(lines)]
        ),
        line="line" if lines else "0",
        computed="; ".join([*constants, *computed]) or "pass",
        custom=f"{entry}({{{given}}}, torch.device(device))" if is_custom else "dict()",
        count=len(inputs),
        names=[*definition["outputs"]],
        **{kind: ", ".join(_spec(*item) for item in definition[kind].items()) for kind in ("inputs", "outputs")},
    )
    sets = {}
    if lines:
        listed = [{fields[name]: value for name, value in case.items()} for case in cases]
        sets["lines"] = [{"line": number, **case} for number, case in enumerate(listed)]
    words = [_tolerance(line.get("tolerance") or {}) for line in lines]
    return f"{text}\nshapes = {sets!r}\n" + (TOLERANCE.format(words=words) if any(words) else "")


def _values(definition: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields in a line: axes that vary, and scalars."""
    axes = [name for name, axis in definition["axes"].items() if axis["type"] == "var"]
    scalars = {name: spec["dtype"] for name, spec in definition["inputs"].items() if spec["shape"] is None}
    given, usual = line.get("inputs", {}), {"bool": False}
    values = {name: line.get("axes", {}).get(name, USUAL) for name in axes}
    for name, dtype in scalars.items():
        default = usual.get(dtype, 1 if "int" in dtype else 1.0)
        values[name] = given.get(name, {}).get("value", default)
    return values


def _spec(name: str, spec: Mapping[str, Any]) -> str:
    """Return the name, the shape and the type of a tensor as source; of a scalar, None and its value."""
    if spec["shape"] is None:
        return f"({name!r}, None, {name})"
    return f"({name!r}, [{', '.join(map(str, spec['shape']))}], {spec['dtype']!r})"


def _tolerance(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tolerance in the words of ``Judge``.

    The two harnesses add ``max_atol`` and ``max_rtol``, but ask for one of ``atol`` and ``rtol``.
    """
    if not words:
        return {}
    summed = "max_atol" in words or "max_rtol" in words or not {"atol", "rtol"} & words.keys()
    names = ("max_atol", "max_rtol") if summed else ("atol", "rtol")
    atol, rtol = (float(words.get(name, 1e-2)) for name in names)
    share = float(words.get("required_matched_ratio") or (0.99 if summed else 1.0))
    return {"atol": atol, "rtol": rtol, "either": not summed, "share": share, "cap": words.get("max_error_cap")}

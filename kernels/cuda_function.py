"""``cuda_kernel``: a kernel of a ``.cu`` file as a function of tensors.

# sgemm.py, beside sgemm.cu
from runner import cuda_kernel

sgemm = cuda_kernel(
"sgemm.cu",
"sgemm_naive",
grid=lambda a, b: (-(-a.shape[0] // 32), -(-b.shape[1] // 32)),
block=(32, 32),
result=lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
arguments=lambda a, b, c: (a.shape[0], b.shape[1], a.shape[1], 1.0, a, b, 0.0, c),
)
c = sgemm(a, b)
"""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .cuda_build import kernel
from .cuda_device_code import device_file
from .launch import planned
from .unsupported import Unsupported

ALIGNED = 16  # bytes: the widest load of a thread
INTEGERS = {  # C++ type → ctypes, and the tensors that a pointer to it may get
    "bool": (ctypes.c_bool, "bool uint8"),
    "char": (ctypes.c_int8, "int8 uint8"),
    "signed char": (ctypes.c_int8, "int8"),
    "unsigned char": (ctypes.c_uint8, "uint8 bool"),
    "short": (ctypes.c_int16, "int16"),
    "unsigned short": (ctypes.c_uint16, "uint16 int16"),
    "int": (ctypes.c_int32, "int32"),
    "unsigned int": (ctypes.c_uint32, "uint32 int32"),
    "long": (ctypes.c_int64, "int64"),
    "unsigned long": (ctypes.c_uint64, "uint64 int64"),
    "long long": (ctypes.c_int64, "int64"),
    "unsigned long long": (ctypes.c_uint64, "uint64 int64"),
}
FLOATS = {"float": "float32", "double": "float64", "__half": "float16", "__nv_bfloat16": "bfloat16"}
VECTORS = {"half": "__half", "nv_bfloat16": "__nv_bfloat16"}  # float2 and the like consist of
VECTORS |= {f"u{name}": f"unsigned {name}" for name in ("char", "short", "int", "long")}
VECTORS |= {"longlong": "long long", "ulonglong": "unsigned long long"}
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}  # along x, y and z, of every GPU
MOST_THREADS = 1024  # of a block
BRACES = re.compile(r"\{(\w+)\}")
TEMPLATES = {value: name for name, value in FLOATS.items()} | {"int32": "int", "int64": "long long", "bool": "bool"}


class BadCall(ValueError):
    """An argument, or an option of ``cuda_kernel``, that no GPU could launch the kernel with."""


def cuda_kernel(
    source: str | Path,
    name: str,
    *,
    grid: Any,
    block: Any,
    arguments: Callable[..., tuple[Any, ...]],
    result: Callable[..., Any] | str | None = None,
    shared: Any = 0,
    include: Sequence[str | Path] = (),
    cooperative: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function of tensors that launches a kernel of a ``.cu`` file as it is written, built by NVRTC.

    The file's host code is left out, and its other kernels: ``cuda_device_code``. The function takes the parameters of
    ``arguments``, but for the result, the last one. ``grid``, ``block``, ``shared`` and ``result`` are values, or
    functions of some of the same parameters, by name. Tensors are passed contiguous and aligned to 16 bytes; others
    are copied first. The launch is on torch's current stream.

    Args:
        source: the ``.cu`` file, seen from the folder of the Python file that calls this.
        name: the kernel's C++ name with its template arguments, as in ``"kernel<float, 32>"``. In it, ``{T}`` stands
            for the C++ type of the first tensor, and ``{threads}`` for the option ``threads``.
        grid: number of blocks, or blocks along x, y and z.
        block: threads of a block, or threads along x, y and z.
        arguments: returns the kernel's arguments in order: tensors, numbers, and None for a null pointer. Numbers get
            the types of the kernel's own parameters. Its parameters after ``*`` are options of the workload.
        result: makes the result, a tensor or several; None: like the first tensor, uninitialized. Or the names of the
            parameters that are the result, as in ``"c"``, if the caller gives it (destination-passing style).
        shared: bytes of dynamic shared memory of a block.
        include: more folders with files that it includes, seen from the same folder; nvcc's ``-I``.
        cooperative: run all blocks at once, for ``grid.sync()``.
        **options: arguments of the function to sweep or tune, with defaults, as in ``threads=256``.

    Raises:
        ValueError: a function names a parameter that ``arguments`` and ``options`` lack. The function that is returned
            raises it for arguments that do not fit the kernel.
        Unsupported: (by the function) not on an NVIDIA GPU, or of tensors of another dtype than the kernel's pointers.
        BuildFailed: (by the function) the file has no such kernel, or the kernel does not compile.

    """
    here = Path(sys._getframe(1).f_globals.get("__file__") or "here").absolute().parent
    folders = [here / folder for folder in include]
    parameters = [item for item in inspect.signature(arguments).parameters.values() if item.name not in options]
    required = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
    inputs = [item.name for item in parameters if item.kind is not item.KEYWORD_ONLY]
    given = result.replace(",", " ").split() if isinstance(result, str) else []
    if not inputs:
        raise ValueError(f"cuda_kernel({name}): arguments has no parameters; write them, as in lambda x, y: (x, y)")
    made = "" if given else inputs.pop()
    known = [*inputs, *required, *options]
    wanted = {
        field: tuple(inspect.signature(field).parameters)
        for field in (grid, block, shared, result, arguments)
        if callable(field)
    }
    fields = {"grid": grid, "block": block, "shared": shared, "result": result}
    for title, field in fields.items():
        words = wanted[field] if callable(field) else given if title == "result" else ()
        allowed = known if title == "result" or not made else [*known, made]
        if unknown := [word for word in words if word not in allowed]:
            raise ValueError(f"cuda_kernel({name}): {title}: no parameter {unknown[0]}; it has {', '.join(allowed)}")
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [item for item in parameters if item.name in (*inputs, *required)]
        + [inspect.Parameter(word, keyword, default=value) for word, value in options.items()]
    )
    defaults = {item.name: item.default for item in parameters if item.name in required} | options
    complete = inspect.Parameter.empty not in defaults.values()
    files: dict[str, Path] = {}
    replaced = BRACES.findall(name)
    grid_of, block_of, shared_of, result_of, arguments_of = map(_reader, (grid, block, shared, result, arguments))

    @planned
    def launch(device: torch.device, filled: str, blocks: Any, threads: Any, shared: int, *words: Any) -> None:
        if filled not in files:  # it is read again when the user's Python file is
            files[filled] = device_file(here / source, filled, folders)
        built = kernel(files[filled], filled, "nvrtc", device)
        extents = _extents(name, "grid", blocks), _extents(name, "block", threads)
        packed = _packed(filled, _types(built.symbol), words, device)
        if 0 not in extents[0]:
            built(*extents, *packed, shared=shared, cooperative=cooperative)

    def call(*tensors: Any, **more: Any) -> Any:
        if len(tensors) == len(inputs) and complete and more.keys() <= defaults.keys():
            values = {**dict(zip(inputs, tensors, strict=True)), **defaults, **more}
        else:
            try:
                bound = signature.bind(*tensors, **more)
            except TypeError as error:
                last = f"; {made}, the last parameter of arguments, is the result, or a tuple of them" if made else ""
                raise TypeError(f"{name}{signature}: {error}{last}") from None
            bound.apply_defaults()
            values = dict(bound.arguments)
        originals = [values[word] for word in given]
        first = None
        for word in inputs:
            if isinstance(value := values[word], Tensor):
                values[word] = _plain(name, value)
                first = values[word] if first is None else first
        if first is None:
            raise BadCall(f"{name}: none of its arguments is a tensor; give one, on whose GPU it runs")

        if made:
            values[made] = torch.empty_like(first) if result is None else result_of(values)
        filled = _filled(name, first.dtype, tuple([_literal(values.get(word)) for word in replaced]))
        blocks, threads, words = grid_of(values), block_of(values), arguments_of(values)
        words = words if isinstance(words, tuple | list) else (words,)
        launch(first.device, filled, blocks, threads, shared_of(values), *words)
        for word, original in zip(given, originals, strict=True):
            if values[word] is not original:
                original.copy_(values[word])
        return values[made] if made else originals[0] if len(originals) == 1 else tuple(originals)

    call.__name__ = call.__qualname__ = re.sub(r"\W.*", "", name.partition("<")[0].rpartition(":")[2])
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return call


def _plain(name: str, x: Tensor) -> Tensor:
    """Return ``x``, or a copy that is contiguous and aligned. Raises Unsupported if autograd wants a gradient."""
    if x.requires_grad and torch.is_grad_enabled():
        raise Unsupported(f"{name} has no backward; call it under torch.no_grad(), or in a torch.autograd.Function")
    return x if x.is_contiguous() and not x.data_ptr() % ALIGNED else x.clone(memory_format=torch.contiguous_format)


@cache
def _filled(name: str, dtype: torch.dtype, words: tuple[str | None, ...]) -> str:
    """Return the C++ name with ``{T}`` and ``{an option}`` replaced by ``words``; None is one that is not known."""
    names = BRACES.findall(name)
    usual = {"T": TEMPLATES.get(str(dtype).removeprefix("torch."))}
    found = [word or usual.get(one) for one, word in zip(names, words, strict=True)]
    if None in found:
        unknown = names[found.index(None)]
        raise BadCall(f"{name}: {unknown} is neither an option of cuda_kernel nor T, the type of a {dtype}")
    replacing = iter(found)
    return BRACES.sub(lambda _: str(next(replacing)), name)


def _literal(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _reader(field: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function of the parameters' values that returns ``field``, or what it returns."""
    if not callable(field):
        return lambda _: field
    parameters = inspect.signature(field).parameters
    names = tuple(parameters)
    if all(item.kind is item.POSITIONAL_OR_KEYWORD for item in parameters.values()):
        return lambda values: field(*[values[word] for word in names])
    return lambda values: field(**{word: values[word] for word in names})


def _extents(name: str, title: str, extents: Any) -> tuple[int, int, int]:
    """Return blocks or threads along x, y and z. Raises ValueError."""
    items = extents if isinstance(extents, tuple | list) else (extents,)
    if not 1 <= len(items) <= 3 or not all(isinstance(item, int) and item >= 0 for item in items):
        raise BadCall(f"{name}: {title} is {extents}; give one to three whole numbers, as in -(-n // 256)")
    x, y, z = (*items, 1, 1)[:3]
    most = LIMITS[title]
    if x > most[0] or y > most[1] or z > most[2]:
        raise BadCall(f"{name}: {title} is {extents}; a GPU takes at most {most} along x, y and z")
    if title == "block" and x * y * z > MOST_THREADS:
        raise BadCall(f"{name}: block is {extents}, {x * y * z} threads; a GPU runs at most {MOST_THREADS} in a block")
    return x, y, z


@cache
def _types(symbol: str) -> tuple[str, ...]:
    """Return the C++ types of the parameters of a kernel, as its symbol encodes them."""
    text, depth = torch._C._demangle(symbol), 0  # "void f<float>(float const*, int)"
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if not depth:
            break
    types, depth = [""], 0
    for letter in text[place + 1 : -1]:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            types.append("")
        else:
            types[-1] += letter
    return tuple(item.strip() for item in types if item.strip() not in ("", "void"))


def _packed(name: str, types: tuple[str, ...], arguments: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the arguments in the types of the kernel's parameters. Raises ValueError, or Unsupported for a dtype."""
    if len(arguments) != len(types):
        raise BadCall(f"{name}: arguments gives {len(arguments)}; the kernel takes {len(types)}: {', '.join(types)}")
    packed = []
    for place, (kind, value) in enumerate(zip(types, arguments, strict=True), 1):
        try:
            packed.append(_pointer(kind, value, device) if kind.endswith("*") else _scalar(kind, value))
        except TypeError as error:
            raise BadCall(f"{name}: argument {place}, {kind}: {error}") from None
        except Unsupported as error:
            raise Unsupported(f"{name}: argument {place}, {kind}: {error}") from None
    return packed


def _pointer(kind: str, value: Any, device: torch.device) -> Tensor | int:
    if value is None:
        return 0
    if not isinstance(value, Tensor):
        raise TypeError(f"{value!r} is not a tensor; give a tensor, or None for a null pointer")
    if value.device != device:
        raise TypeError(f"the tensor is on {value.device}, and the first one on {device}; move it there")
    allowed = _dtypes(kind)
    if allowed and (dtype := str(value.dtype).removeprefix("torch.")) not in allowed:
        raise Unsupported(f"the tensor is {dtype}, and the kernel takes {allowed[0]}; convert it, or change the kernel")
    return value


@cache
def _dtypes(kind: str) -> tuple[str, ...]:
    """Return the dtypes of tensors that a pointer may point to; () if any."""
    words = kind.rstrip("*").replace("const", "").replace("volatile", "").strip()
    vector = re.fullmatch(r"(?:__)?([a-z]+?|nv_bfloat16|half)([1-4])", words)
    if words in FLOATS or words in INTEGERS or not vector:
        return (FLOATS[words],) if words in FLOATS else tuple(INTEGERS[words][1].split()) if words in INTEGERS else ()
    item = _dtypes(f"{VECTORS.get(vector[1], vector[1])}*")
    return item + {"float2": ("complex64",), "double2": ("complex128",)}.get(words, ())


def _scalar(kind: str, value: Any) -> Any:
    if kind not in FLOATS and kind not in INTEGERS:
        raise TypeError("a kernel with such a parameter cannot be launched from here; give its members one by one")
    if isinstance(value, Tensor) or not isinstance(value, bool | int | float):
        raise TypeError(f"{type(value).__name__} is not a number; give one, as in x.shape[0] or x.item()")
    if kind == "float":
        return ctypes.c_float(value)
    if kind == "double":
        return ctypes.c_double(value)
    if kind in FLOATS:
        bits = torch.tensor(float(value), dtype=getattr(torch, FLOATS[kind])).view(torch.int16).item()
        return ctypes.c_uint16(int(bits) & 0xFFFF)
    make: Any = INTEGERS[kind][0]
    if int(value) != value or make(int(value)).value != value:
        raise TypeError(f"{value} is not a value of that type")
    return make(int(value))

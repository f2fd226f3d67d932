"""Every file of kernels/<op>/ against its workload's float64 reference. A new file or workload needs no edit here.

Triton kernels on a CPU need TRITON_INTERPRET=1 before they are imported: test_under_the_interpreter.py runs this again.
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from runner.kernels.unsupported import Unsupported
from runner.models.layout import Layout
from runner.models.workload import Size
from runner.records.options import CONF, option_class, option_defaults

KERNELS = Path(__file__).parents[2] / "kernels"
OPS = sorted(path.stem for path in (CONF / "workload").glob("*.yaml"))
OF_RANKS = {op for op in OPS if "ranks" in option_defaults(f"workload/{op}")}  # see tests/execute/test_ranks.py
FOUND = sorted((path.parent.name, path.stem) for path in KERNELS.glob("*/[!_]*.py") if path.parent.name not in OF_RANKS)
TRITON = [op for op, impl in FOUND if impl == "triton"]
DTYPES = ["float32", "float16", "bfloat16", "float64"]
ALWAYS = ["naive", "torch"]  # they refuse nothing
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

REDUCED = [  # one number | one program for each output | several share each; along memory and across
    {"rows": rows, "cols": cols, "dim": dim} for rows, cols in ((1, 1), (41, 101), (2, 9000)) for dim in ("all", 0, 1)
]
# Several rows a program, the last one short | one row a program, half of a block is padding; a row without variance.
NORMALIZED = [
    {"rows": rows, "cols": cols, "pass_": pass_}
    for rows, cols, pass_ in ((70, 127, "fwd_bwd"), (3, 2056, "bwd"), (3, 1, "fwd_bwd"), (5, 66, "fwd"))
]
LOGITS = [  # 1 | several rows a block | one step, and edges | several steps
    {"rows": rows, "vocab": vocab, "pass_": pass_}
    for pass_ in ("fwd_bwd", "fwd", "bwd")
    for rows, vocab in ((5, 1), (9, 127), (3, 2049), (2, 9000))[: 4 if pass_ == "fwd_bwd" else 2]
]
CONVOLVED = ("batch", "channels", "height", "width", "filters", "kernel", "padding")
# One number | grouped, strided and dilated | pixels that no filter reads, and results of padding alone
CONVOLUTIONS: dict[str, list[dict[str, object]]] = {  # Triton has none of these
    "conv2d": [
        dict(zip((*CONVOLVED, "stride", "dilation", "groups", "pass_"), sizes, strict=True))
        for sizes in (
            (1, 1, 1, 1, 1, 1, 0, 1, 1, 1, "fwd_bwd"),
            (2, 6, 11, 8, 10, 3, 1, 2, 2, 2, "fwd_bwd"),
            (2, 19, 9, 34, 70, 2, 3, 1, 1, 1, "fwd"),
        )
    ],
    "cnn_step": [{"batch": 5, "size": 9, "filters": 3, "hidden": 7, "steps": 2, "batches": 2}],
}
BLOCKS = [  # windows of 4 and of 9 numbers, with rows left over | every number is its own window | statistics
    dict(zip((*CONVOLVED, "pool", "mode", "pass_"), sizes, strict=True))
    for sizes in (
        (2, 5, 11, 8, 19, 3, 1, 2, "inference", "fwd"),
        (1, 3, 9, 10, 3, 2, 0, 3, "inference", "fwd"),
        (2, 20, 4, 5, 2, 1, 2, 1, "inference", "fwd"),
        (3, 3, 7, 6, 4, 3, 1, 2, "training", "fwd_bwd"),
    )
]
MLP = {"dim": 37, "layers": 3, "batch": 19, "steps": 1, "zero_grad": "every_step", "lr": 0.1}
POINTS: dict[str, list[dict[str, object]]] = {  # where the kernels of an op take another way; else ``points`` chooses
    **dict.fromkeys(("argmax", "norm", "reduce_max", "reduce_sum"), REDUCED),
    # 1 | several rows a program, the last one short | one row a program | half of a block is padding | wide rows
    "softmax": [
        {"rows": rows, "cols": cols, "pass_": pass_}
        for pass_ in ("fwd", "bwd")
        for rows, cols in ((5, 1), (70, 127), (3, 1024), (3, 4096), (2, 16385), (2, 32769), (2, 70001), (1, 131073))
    ],
    # several rows a program | half of a block is padding | blocks of a row, with the last one short
    "cumsum": [{"rows": rows, "cols": cols} for rows, cols in ((5, 1), (70, 127), (3, 4096), (2, 5000), (2, 16385))],
    "histogram": [
        {"elements": elements, "bins": bins, "data": data}
        for elements, bins, data in (
            (1, 1, "zeros"),
            (999, 10, "normal"),
            (5000, 256, "uniform"),
            (5000, 1025, "uniform"),
        )
    ],
    # one query and key | grouped heads, more keys than queries | fewer keys, an odd d | several blocks, the last short
    "transformer_block": [
        {
            "style": style,
            "pass_": pass_,
            "kv_heads": 2,
            "batch": 2,
            "length": 7,
            "dim": 24,
            "heads": 4,
            "d": 10,
            "hidden": 33,
        }
        for style, pass_ in (("llama", "fwd_bwd"), ("gpt2", "train_step"))
    ],
    "attention": [
        dict(zip(("batch", "heads", "kv_heads", "length", "kv_length", "d", "causal"), sizes, strict=True))
        | {"pass_": "fwd_bwd"}
        for sizes in (
            (1, 1, 1, 1, 1, 1, True),
            (2, 4, 2, 33, 131, 24, True),
            (1, 2, 2, 70, 65, 17, False),
            (1, 1, 1, 150, 150, 128, True),
        )
    ],
    "adamw": [
        {"layers": 2, "dim": dim, "kv": 3, "hidden": 2 * dim, "vocab": 50, "step": step, "moments": moments}
        for dim, step, moments in ((1, 1, "same"), (33, 10, "float32"))
    ],
    **CONVOLUTIONS,
    "transpose": [{"rows": rows, "cols": cols} for rows, cols in ((1, 1), (1, 300), (130, 67), (128, 256))],
    "matmul": [
        {"size": 1, "m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (33, 65, 127), (128, 128, 128), (7, 5, 4001))
    ],
    # per row | a part of a sum for each program | groups in a tile, of a part of it, and of no power of 2
    "linear_int8": [
        {"m": m, "n": n, "k": k, "group": group}
        for m, n, k, group in ((1, 1, 1, 0), (3, 65, 1001, 0), (17, 33, 300, 32), (2, 9, 300, 128), (5, 33, 200, 50))
    ],
    "nearest": [{"n": n, "m": m, "d": d} for n, m, d in ((1, 1, 1), (33, 65, 3), (70, 200, 64), (20, 25, 127))],
    "cdist": [{"n": n, "m": m, "d": d, "p": 2} for n, m, d in ((1, 1, 1), (33, 65, 3), (20, 25, 127), (64, 64, 512))],
    **dict.fromkeys(("layernorm", "rmsnorm"), NORMALIZED),
    "cross_entropy": LOGITS,
    "conv_bn_relu_pool": BLOCKS,
    "mlp": [
        {"activation": activation, "pass_": pass_, **MLP, "steps": steps}
        for activation in ("gelu", "relu")
        for pass_, steps in (("fwd", 1), ("fwd_bwd", 1), ("train_step", 2))
    ]
    + [{"activation": "relu", "pass_": "fwd_bwd", "data": "zeros", **MLP}],  # relu has a derivative at 0 too
}


SIZES = ((1, 1, 1, 1), (3, 127, 5, 2), (64, 64, 64, 4), (5, 1001, 7, 3))  # of the fields of a workload, in turn


def points(op: str) -> list[dict[str, object]]:
    """Return the fields at which ``op`` is checked: small and odd sizes, with each value of every other choice."""
    if op in POINTS:
        return POINTS[op]
    types = get_type_hints(option_class("models", op), include_extras=True)
    sizes = [name for name, kind in types.items() if kind == Size]
    choices = {name: get_args(kind) for name, kind in types.items() if get_origin(kind) is Literal}
    choices = {name: values for name, values in choices.items() if name not in ("dtype", "data", "layout")}
    return [
        dict(zip((*sizes, *choices), (*numbers[: len(sizes)], *values), strict=True))
        for values in product(*choices.values())
        for numbers in SIZES
    ]


def dtypes(op: str) -> list[str]:
    """Return the dtypes of DTYPES that a workload takes."""
    return [dtype for dtype in DTYPES if repr(dtype) in str(get_type_hints(option_class("models", op))["dtype"])]


LAYOUTS: dict[str, list[dict[str, object]]] = {  # workloads with a field ``layout``
    "gelu": [{"rows": 5, "cols": 66, "pass_": pass_} for pass_ in ("fwd", "bwd")],
    "matmul": [{"size": None, "m": 18, "n": 34, "k": 66}],
    "softmax": [{"rows": 5, "cols": 66, "pass_": pass_} for pass_ in ("fwd", "bwd")],
    **{op: [{"rows": 5, "cols": 66, "pass_": "fwd_bwd"}] for op in ("layernorm", "rmsnorm")},
    "cross_entropy": [{"rows": 5, "vocab": 66, "pass_": "fwd_bwd"}],
    "linear_int8": [{"m": 5, "n": 18, "k": 66, "group": 32}],
    "nearest": [{"n": 5, "m": 9, "d": 66}],
}


def test_every_workload_has_a_naive_kernel_and_those_of_the_project_torch_and_triton():
    assert {(op, "naive") for op in OPS if op not in OF_RANKS} <= set(FOUND)
    assert {(op, "torch") for op in POINTS} | {(op, "triton") for op in {*POINTS} - {*CONVOLUTIONS}} <= set(FOUND)


@pytest.mark.parametrize(("op", "impl", "dtype"), [(*file, dtype) for file in FOUND for dtype in dtypes(file[0])])
def test_matches_float64_at_small_and_odd_sizes(make, expected_of, error, op, impl, dtype, device):
    if impl == "triton":
        pytest.importorskip("triton")
    refused = []
    try:
        function = getattr(import_module(f"runner.kernels.{op}.{impl}"), op)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for point in points(op):
        workload, inputs = make(op, dtype=dtype, device=device, **point)
        expected = expected_of(workload, inputs)  # before a call, which may change its inputs
        try:
            outputs = workload.call(function, inputs).run()
        except Unsupported as reason:
            assert impl not in ALWAYS or (op, impl) == ("cdist", "torch")
            refused.append(str(reason))  # of some it has the forward alone
            continue
        kinds = [one.dtype for one in expected] if isinstance(expected, tuple) else [""] * len(outputs)
        kinds = [kind or workload.output_dtype for kind in kinds]
        assert [y.dtype for y in outputs] == [getattr(torch, kind) for kind in kinds]
        assert error(expected, outputs) <= 1, point
    if len(refused) == len(points(op)):
        pytest.skip(refused[0])


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize(("op", "impl"), [file for file in FOUND if file[0] in LAYOUTS])
def test_every_layout_of_the_inputs_gives_the_same_result(make, expected_of, error, op, impl, layout, device):
    if impl == "triton":
        pytest.importorskip("triton")
    try:
        function = getattr(import_module(f"runner.kernels.{op}.{impl}"), op)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for point in LAYOUTS[op]:
        workload, inputs = make(op, dtype="float32", device=device, layout=layout, **point)
        contiguous, plain = make(op, dtype="float32", device=device, **point)
        assert all(map(torch.equal, inputs, plain))
        laid_out = [x for x in inputs if x.is_floating_point()]
        assert all(x.stride() == strides(layout, *x.shape) for x in laid_out)
        assert all(x.storage_offset() == (layout == "offset") for x in laid_out)
        try:
            outputs = workload.call(function, inputs).run()
        except Unsupported as reason:
            assert impl not in ALWAYS
            pytest.skip(str(reason))
        assert error(expected_of(contiguous, plain), outputs) <= 1, point


def strides(layout: str, *shape: int) -> tuple[int, ...]:
    """Return the strides of a matrix, or of a vector, in a layout."""
    if len(shape) == 1:
        return ({"strided": 2}.get(layout, 1),)
    rows, cols = shape
    return {"transposed": (1, rows), "strided": (2 * cols, 2)}.get(layout, (cols, 1))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    "op",
    [
        "cdist",
        "cross_entropy",
        "cumsum",
        "gelu",
        "histogram",
        "layernorm",
        "linear_int8",
        "nearest",
        "reduce_sum",
        "rmsnorm",
        "softmax",
        "square",
    ],
)
def test_triton_refuses_what_is_no_float(make, load, device, op, kind):
    function = load(op, "triton")
    workload, inputs = make(op, dtype="float32", device=device, **points(op)[0])
    with pytest.raises(Unsupported, match="convert"):
        workload.call(function, tuple(tensor.to(kind) for tensor in inputs)).run()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter makes Triton work on a CPU")
@pytest.mark.parametrize("op", TRITON)
def test_triton_on_a_cpu_says_what_would_help(make, op):
    workload, inputs = make(op, dtype="float32", **points(op)[0])
    function = getattr(import_module(f"runner.kernels.{op}.triton"), op)
    with pytest.raises(Unsupported, match=r"need an NVIDIA GPU; .*debug=interpret, or .*TRITON_INTERPRET=1"):
        workload.call(function, inputs).run()

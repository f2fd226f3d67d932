"""Every file of every folder of kernels/ against its workload's float64 reference. A new file needs no edit here.

Triton kernels on a CPU need TRITON_INTERPRET=1 before they are imported: test_under_the_interpreter.py runs this again.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from runner.kernels.unsupported import Unsupported

KERNELS = Path(__file__).parents[2] / "kernels"
FOUND = sorted((path.parent.name, path.stem) for path in KERNELS.glob("*/[!_]*.py"))
DTYPES = ["float32", "float16", "bfloat16", "float64"]
ONLY = {"histogram": ["float32"]}  # the dtypes of a workload that has not all of them
ALWAYS = ["naive", "torch"]  # what every op has, everywhere
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

REDUCED = [  # one number | one program for each output | several share each; along memory and across
    {"rows": rows, "cols": cols, "dim": dim} for rows, cols in ((1, 1), (41, 101), (2, 9000)) for dim in ("all", 0, 1)
]
MLP = {"dim": 37, "layers": 3, "batch": 19, "steps": 1, "zero_grad": "every_step", "lr": 0.1}
POINTS: dict[str, list[dict[str, object]]] = {
    "add": [{"rows": rows, "cols": cols} for rows, cols in ((1, 1), (3, 127), (64, 64), (41, 1001))],
    "gelu": [
        {"rows": rows, "cols": cols, "form": form, "pass_": pass_}
        for pass_ in ("fwd", "bwd")
        for form in ("tanh", "erf")
        for rows, cols in ((1, 1), (3, 127), (64, 64), (41, 1001))
    ],
    **dict.fromkeys(("argmax", "norm", "reduce_max", "reduce_sum"), REDUCED),
    "square": [
        {"rows": rows, "cols": cols, "pass_": pass_} for pass_ in ("fwd", "bwd") for rows, cols in ((1, 1), (41, 101))
    ],
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
    "transpose": [{"rows": rows, "cols": cols} for rows, cols in ((1, 1), (1, 300), (130, 67), (128, 256))],
    "matmul": [
        {"size": 1, "m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (33, 65, 127), (128, 128, 128), (7, 5, 4001))
    ],
    "cdist": [{"n": n, "m": m, "d": d, "p": 2} for n, m, d in ((1, 1, 1), (33, 65, 3), (20, 25, 127), (64, 64, 512))],
    "mlp": [
        {"activation": activation, "pass_": pass_, **MLP, "steps": steps}
        for activation in ("gelu", "relu")
        for pass_, steps in (("fwd", 1), ("fwd_bwd", 1), ("train_step", 2))
    ]
    + [{"activation": "relu", "pass_": "fwd_bwd", "data": "zeros", **MLP}],  # relu has a derivative at 0 too
}


def test_the_folders_hold_what_the_project_promises():
    triton = {(op, "triton") for op in POINTS}
    assert {(op, impl) for op in POINTS for impl in ALWAYS} | triton <= set(FOUND)


@pytest.mark.parametrize(
    ("op", "impl", "dtype"), [(*one, dtype) for one in FOUND for dtype in ONLY.get(one[0], DTYPES)]
)
def test_matches_float64_at_small_and_odd_sizes(make, error, op, impl, dtype, device):
    if impl == "triton":
        pytest.importorskip("triton")
    refused = []
    try:
        function = getattr(import_module(f"runner.kernels.{op}.{impl}"), op)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for point in POINTS[op]:
        workload, inputs = make(op, dtype=dtype, device=device, **point)
        try:
            outputs = workload.call(function, inputs).run()
        except Unsupported as reason:
            assert impl not in ALWAYS or (op, impl) == ("cdist", "torch")
            refused.append(str(reason))  # of some it has the forward alone
            continue
        assert all(y.dtype == getattr(torch, workload.output_dtype) for y in outputs)
        assert error(workload.reference(*inputs), outputs) <= 1, point
    if len(refused) == len(POINTS[op]):
        pytest.skip(refused[0])


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("op", ["cdist", "cumsum", "gelu", "histogram", "reduce_sum", "softmax", "square"])
def test_triton_refuses_what_is_no_float(make, load, device, op, kind):
    function = load(op, "triton")
    workload, inputs = make(op, dtype="float32", device=device, **POINTS[op][0])
    with pytest.raises(Unsupported, match="convert"):
        workload.call(function, tuple(tensor.to(kind) for tensor in inputs)).run()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter makes Triton work on a CPU")
@pytest.mark.parametrize(
    "op", ["add", "cumsum", "gelu", "histogram", "matmul", "mlp", "reduce_sum", "softmax", "square", "transpose"]
)
def test_triton_on_a_cpu_says_what_would_help(make, op):
    workload, inputs = make(op, dtype="float32", **POINTS[op][0])
    function = getattr(import_module(f"runner.kernels.{op}.triton"), op)
    with pytest.raises(Unsupported, match=r"need an NVIDIA GPU; .*debug=interpret device=cpu, or .*TRITON_INTERPRET=1"):
        workload.call(function, inputs).run()

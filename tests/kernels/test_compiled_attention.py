"""What Triton makes of attention, compiled here for GPUs that need not be here: tensor cores, spills, shared memory."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from runner.kernels.attention._configurations import forward_blocks, keys_blocks, queries_blocks  # noqa: E402
from runner.kernels.attention._triton_backward import (  # noqa: E402
    attention_backward_keys,
    attention_backward_queries,
)
from runner.kernels.attention._triton_forward import attention_forward  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED = {80: 163, 89: 99, 90: 227, 100: 227}  # KiB that a block of threads may have
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
KERNELS = {"forward": attention_forward, "keys": attention_backward_keys, "queries": attention_backward_queries}


def compiled(which, capability, dtype, d, tmp_path):
    """PTX, stack and shared memory of a kernel with the blocks that it has on such a GPU; causal, contiguous."""
    hopper, kernel = capability == 90, KERNELS[which]
    itemsize = 4 if dtype == "fp32" else 2
    known, shared = (hopper, itemsize, d), 1024 * SHARED[capability]
    if which == "keys":
        blocks = keys_blocks(*known, shared)
    else:
        blocks = (forward_blocks if which == "forward" else queries_blocks)(*known)
    by_descriptors = hopper and itemsize == 2
    rows = {"q": blocks.queries, "do": blocks.queries, "k": blocks.keys, "v": blocks.keys}
    types = {name: f"tensordesc<{dtype}[1,1,{n},{d}]>" if by_descriptors else f"*{dtype}" for name, n in rows.items()}
    types |= {"lse": "*fp32", "delta": "*fp32", "scale": "fp32", "factor": "fp32"}
    types |= dict.fromkeys(("o", "dk", "dv", "dq"), f"*{dtype}")
    values = {"CAUSAL": True, "RAGGED": True, "TMA": by_descriptors, "PARTS": 8, "D": d}
    values |= {"PRECISION": "ieee" if itemsize == 2 else "tf32x3"}
    values |= {"BM": blocks.queries, "BN": blocks.keys, "STAGES": blocks.stages}
    names = kernel.arg_names
    constants = {name: value for name, value in values.items() if name in names}
    constants |= {name: 1 for name in names if name.endswith("_d")}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = [
        place for place, (name, kind) in enumerate(signature.items())
        if kind[0] == "*" or name[-2:] in ("_b", "_h", "_l")
    ]  # fmt: skip
    attrs = {(place,): [["tt.divisibility", 16]] for place in aligned}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attrs)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": blocks.warps})
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return built.asm["ptx"], int(re.search(r"STACK:(\d+)", usage)[1]), built.metadata.shared


@pytest.mark.parametrize(
    ("which", "capability", "dtype", "d"),
    [
        ("forward", 90, "bf16", 128),
        ("keys", 90, "fp16", 64),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (
            ("forward", 90, "bf16", 64),
            ("keys", 90, "bf16", 128),
            ("queries", 90, "bf16", 128),
            ("forward", 80, "bf16", 128),
            ("keys", 80, "bf16", 64),
            ("keys", 89, "bf16", 128),
            ("forward", 89, "fp32", 128),
            ("keys", 89, "fp32", 128),
            ("queries", 89, "fp32", 128),
            ("forward", 100, "fp16", 64),
            ("keys", 100, "fp16", 128),
        )),
    ],
)  # fmt: skip
def test_tensor_cores_multiply_and_little_is_spilled(tmp_path, which, capability, dtype, d):
    ptx, stack, shared = compiled(which, capability, dtype, d, tmp_path)
    assert TENSOR_CORES[capability] in ptx
    assert shared <= 1024 * SHARED[capability]
    assert stack <= (512 if dtype == "fp32" else 128 if which == "keys" else 0)
    assert ".f64" not in ptx
    if capability == 90:
        assert "mma.sync" not in ptx
        assert "cp.async.bulk.tensor" in ptx

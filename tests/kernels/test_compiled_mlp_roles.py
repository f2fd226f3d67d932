"""What Gluon makes of the MLP's products whose warps have roles, for a Hopper GPU that need not be here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("no interpreter runs Gluon", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from kernels.mlp import _roles as launching  # noqa: E402
from kernels.mlp import _triton_roles as roles  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED = 232_448  # bytes that a program may have
HALF, COLS, K = roles.HALF_M.value, roles.COLS.value, roles.BLOCK_K.value
WIDE = roles.BLOCK_N.value


def tiles(rows, cols):
    """The type of a descriptor of such tiles."""
    return f"tensordesc<bf16[{rows}, {cols}],{gl.NVMMASharedLayout.get_default_for([rows, cols], gl.bfloat16)!r}>"


KINDS = [("forward", False), ("forward alone", False), ("chained", False), ("chained", True), ("weight", False)]


@pytest.mark.parametrize(("kind", "relu"), KINDS)
def test_what_follows_a_product_runs_beside_the_next_and_spills_nothing(tmp_path, kind, relu):
    forward, weight = kind.startswith("forward"), kind == "weight"
    constants = {"FORWARD": forward, "WEIGHT": weight, "RELU": relu, "KEEP": kind == "forward"}
    arguments = {
        "a": tiles(K, HALF) if weight else tiles(HALF, K),
        "b": tiles(WIDE, K) if forward else tiles(K, WIDE),
        "out": tiles(HALF, COLS),
        "slope": tiles(HALF, COLS),
        "given": "*bf16",
        "sums": "*bf16" if weight else "*fp32",
        **dict.fromkeys(["rows", "cols", "depth"], "i32"),
    }
    names = roles.product.arg_names
    source = GluonASTSource(
        roles.product,
        signature={name: "constexpr" if name in constants else arguments[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in ("given", "sums", "cols")},
    )
    options = {"num_warps": launching.WARPS, "maxnreg": roles.AT_FIRST}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    dumped = [
        subprocess.run([CUOBJDUMP, what, cubin], capture_output=True, text=True, check=True).stdout
        for what in ("-res-usage", "-sass")
    ]
    usage, sass = dumped
    ptx = built.asm["ptx"]
    assert set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", ptx)) == {"m64n256k16"}
    # Finished beside the first steps of the next tile, and the last tile at the end; by each warpgroup.
    stores = 2 * 2 * roles.PARTS.value * (2 if kind == "forward" else 1)
    assert len(re.findall(r"bulk\.tensor\.2d\.global\.shared", ptx)) == stores
    # A product is in flight whenever a step waits: only a complete tile is waited for to the end.
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx)
    assert (waits.count("1"), waits.count("0")) == (2 * (roles.PARTS.value + 1), 2)
    assert sass.count("WARPGROUP.DEPBAR") == len(waits)
    assert built.metadata.shared <= SHARED
    assert re.search(r"STACK:(\d+)", usage)[1] == "0"
    assert not re.search(r"\b(LDL|STL)\b", sass)

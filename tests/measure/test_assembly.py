"""Readers of PTX and SASS, on output of real compilers for GPUs that this machine may not have."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest

from runner.measure.inspect.assembly import (
    cuobjdump,
    disassembled,
    read_ptx,
    read_sass,
    read_usage,
    registers_allowed,
)

KERNELS = Path(__file__).parents[2] / "kernels"

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;                              /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.64.CONSTANT R2, desc[UR4][R2.64] ;            /* 0x00000000002828a9 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;        /* 0x000000000002baea */
        /*0030*/              @UP0 STG.E.U16 desc[UR4][R2.64], R5 ;                    /* 0x000000050200798e */
        /*0040*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;     /* 0x03e0000008187df0 */
        /*0050*/                   DADD R4, R4, R6 ;                                   /* 0x0000000004047229 */
        /*0060*/                   DADD R4, R4, R6 ;                                   /* 0x0000000004047229 */
        /*0070*/                   F2F.F64.F32 R4, R4 ;                                /* 0x0000000004047310 */
        /*0080*/                   UTMALDG.2D [UR8], [UR4] ;                           /* 0x00000008040075b4 */
"""

PTX = """
	ld.param.b64 	%rd1, [k_param_0];
	@%p1 ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
	ld.global.nc.L1::evict_first.b16 %rs1, [%rd1];
	cp.async.cg.shared.global [ %r3 + 0 ], [ %rd2 + 0 ], 0x10, %r4;
	st.global.b32 [ %rd3 + 0 ], { %r5 };
	wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd4, %rd5, p, 1, 1;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f1 }, { %r1 }, { %r2 }, { %f2 };
	add.rn.f64 	%fd1, %fd2, %fd3;
	cvt.f64.f32 	%fd4, %f5;
	mov.f64 	%fd5, 0d3FF0000000000000;
	cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1, {%r2, %r3}], [%r4];
"""

counts = attrgetter("load_bits", "store_bits", "tensor_instructions", "fp64_instructions", "bulk")


def test_sass_says_widths_tensor_cores_and_double_precision():
    code = read_sass(SASS)
    assert counts(code) == (128, 16, 1, 3, 1)
    assert code.fp64_names == {"DADD": 2, "F2F.F64.F32": 1}
    assert code.by_name.total() == 9


def test_ptx_says_the_same():
    code = read_ptx(PTX)
    assert counts(code) == (128, 32, 2, 2, 1)


def test_code_without_any_of_it_counts_nothing():
    for code in (read_sass(""), read_ptx("")):
        assert counts(code) == (0, 0, 0, 0, 0)


def test_a_table_of_resources_is_read_and_of_several_functions_the_most_counts():
    text = "Function a:\n  REG:40 STACK:16 SHARED:1024 LOCAL:0 CONSTANT[0]:560\nFunction b:\n  REG:32 STACK:0 SHARED:0"
    assert read_usage(text) == (40, 16, 1024)
    assert read_usage("") == (0, 0, 0)


@pytest.mark.parametrize(
    ("bounds", "registers"),
    [
        ("", 255),
        (".reqntid 128", 255),
        (".reqntid 1024", 64),
        (".maxntid 32, 8, 1\n.minnctapersm 2", 128),
        (".maxntid 384, 1, 1", 168),
        (".reqntid 256\n.maxnreg 104", 104),
    ],
)
def test_the_bounds_on_a_launch_leave_so_many_registers(bounds, registers):
    assert registers_allowed(f".visible .entry k(\n)\n{bounds}\n{{") == registers


@pytest.fixture
def compiled():
    pytest.importorskip("cuda.core")
    from runner.kernels import cuda_nvrtc

    if cuobjdump() is None:
        pytest.skip("neither Triton nor CUDA is here, which cuobjdump comes with")

    def build(op, file, name, arch):
        source = KERNELS / op / file
        _, cubin, _ = cuda_nvrtc.compiled(source, name, arch)
        sass, usage = disassembled(cubin)
        return read_sass(sass), read_ptx(cuda_nvrtc.ptx(source, name, arch)), usage

    return build


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_lectures_gelu_has_double_precision_and_narrow_loads_in_either(compiled, arch):
    sass, ptx, (registers, spill_bytes, _) = compiled("gelu", "gelu_lecture.cu", "gelu_kernel", arch)
    assert sass.fp64_names["DFMA"] > 20
    assert ptx.fp64_instructions > 10
    assert sass.load_bits == ptx.load_bits == sass.store_bits == ptx.store_bits == 32
    assert spill_bytes == 0
    assert 0 < registers < 64


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_usual_gelu_has_wide_ones_and_single_precision(compiled, arch):
    sass, ptx, _ = compiled("gelu", "gelu.cu", "gelu_kernel<float, true, true>", arch)
    assert sass.load_bits == ptx.load_bits == sass.store_bits == ptx.store_bits == 128
    assert sass.fp64_instructions == ptx.fp64_instructions == sass.tensor_instructions == ptx.tensor_instructions == 0


def test_a_product_of_bfloat16_has_tensor_cores(compiled):
    from runner.kernels.matmul.cuda import LARGE

    name = f"matmul_kernel<bfloat16, {', '.join(map(str, LARGE))}, true>"
    sass, ptx, (_, spill_bytes, _) = compiled("matmul", "matmul.cu", name, "sm_80")
    assert sass.tensor_instructions == ptx.tensor_instructions > 0
    assert sass.load_bits == ptx.load_bits == 128
    assert spill_bytes == 0


def test_what_is_no_machine_code_is_not_disassembled():
    assert disassembled(b"no cubin") is None

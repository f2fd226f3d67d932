"""``measure=inspect``: the kernels that a call launches, and those that it would launch on another GPU."""

from __future__ import annotations

import csv
import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch

from runner.kernels import cuda_build
from runner.measure import CannotMeasure, MeasureContext
from runner.measure.inspect import Inspect, compilations
from runner.measure.inspect.kernel_table import dominant, kernel_lines
from runner.measure.inspect.programs import Program, Seen, of_cuda
from runner.measure.inspect.why import NAMES, Facts, explain
from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings
from runner.timing.call import Call
from runner.worker import Worker, warm_up_process

GELU = {
    "rows": 512,
    "cols": 1024,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
MATMUL = {
    "size": 1024,
    "m": 1024,
    "n": 1024,
    "k": 1024,
    "dtype": "bfloat16",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
CUDA = {"build": "nvrtc", "variant": "default"}
COMPILED = {"of": "torch", "mode": "default", "dynamic": False, "fullgraph": False, "cold": False}

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs Triton, and not its interpreter",
)
with_nvrtc = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs cuda.core")


@pytest.fixture
def inspected(tmp_path):
    """Run a case; return its row and the files of its inspection by their names."""

    def go(impl, fields=None, *, workload=("gelu", GELU), device="cpu", arch=None):
        measures = (Choice("inspect", {"reference": None, "arch": arch}),)
        case = CaseRecord(Choice(*workload), Choice(impl, fields or {}), measures, Settings(device, 0))
        if device == "cuda":
            warm_up_process(device)  # as a worker's process does: CUPTI is there before a CUDA graph is captured
        row, _ = Worker(files=tmp_path / "files").run(case)
        folder = tmp_path / "files" / case.key / "inspect"
        return row, {path.name: path for path in folder.glob("*")}

    return go


def table(files):
    with open(files["kernels.csv"], newline="") as file:
        return list(csv.DictReader(file))


@with_triton
@pytest.mark.parametrize("arch", [80, 90])
def test_without_a_gpu_triton_kernels_are_compiled_for_one_and_the_row_says_that_it_was_not_run(inspected, arch):
    row, files = inspected("triton", arch=arch)
    assert row.status == "unsupported"
    assert row.reason.startswith("not run, only measured by inspect: Triton kernels need an NVIDIA GPU")
    assert {f"gelu.{stage}" for stage in ("ttir", "ttgir", "llir", "ptx", "sass")} <= set(files)
    assert f".target sm_{arch}" in files["gelu.ptx"].read_text()
    assert f"sm_{arch}" in files["gelu.sass"].read_text()
    (line,) = table(files)
    assert (line["kernel"], line["origin"], line["launches"]) == ("_gelu", "triton", "1")
    metrics = row.metrics
    assert (metrics["load_bits"], metrics["store_bits"], metrics["kernel_spill_bytes"]) == (128, 128, 0)
    assert (metrics["fp64_instructions"], metrics["tensor_instructions"]) == (0, 0)
    assert metrics["kernel_name"] == "_gelu"
    assert metrics["why"].startswith(f"compiled for sm_{arch}, and not launched")


@with_nvrtc
@with_triton
def test_without_a_gpu_cuda_is_compiled_too_and_the_lectures_has_double_precision(inspected):
    row, files = inspected("cuda", CUDA | {"variant": "lecture"}, arch=90)
    assert row.status == "unsupported"
    assert row.metrics["fp64_instructions"] > 20
    assert row.metrics["load_bits"] == 32
    assert {"gelu_kernel.ptx", "gelu_kernel.sass"} <= set(files)


@with_nvrtc
def test_arguments_that_the_kernel_does_not_take_are_an_error_without_a_gpu_too(inspected, tmp_path):
    (tmp_path / "k.cu").write_text("__global__ void f(float const* x, float* y, int n) { y[0] = x[0]; }")
    (tmp_path / "k.py").write_text(
        "from runner import cuda_kernel\n"
        "few = cuda_kernel('k.cu', 'f', grid=1, block=32, arguments=lambda x, y: (x, y))\n"
    )
    row, _ = inspected("few", {"path": f"{tmp_path / 'k.py'}:few", "args": {}, "rev": None}, arch=90)
    assert row.status == "error"
    assert row.reason == "BadCall: f: arguments gives 2; the kernel takes 3: float const*, float*, int"


def test_without_an_architecture_what_is_refused_stays_refused(inspected):
    row, files = inspected("cuda", CUDA)
    assert row.status == "unsupported"
    assert row.reason.startswith("CUDA C++ needs tensors on an NVIDIA GPU; to compile")  # not "only measured by"
    assert files == {}


def test_on_a_cpu_the_generated_cpp_is_shown(inspected):
    row, files = inspected("compiled", COMPILED)
    assert row.status == "ok"
    assert "cpp_fused" in files["generated_0.py"].read_text()
    assert "extern" in files["generated_0.py"].read_text()
    assert row.metrics["why"].startswith("one generated graph")
    assert table(files) == []


def test_a_backward_has_a_graph_of_its_own(inspected):
    row, files = inspected("compiled", COMPILED, workload=("mlp", MLP))
    assert row.status == "ok"
    assert {"generated_0.py", "generated_1.py"} <= set(files)
    assert "generated_2.py" not in files


MLP = {"dim": 32, "layers": 1, "batch": 16, "steps": 1, "activation": "gelu", "pass": "fwd_bwd"}
MLP |= {
    "zero_grad": "every_step",
    "optimizer": "sgd",
    "autocast": "none",
    "lr": 0.01,
    "print_loss": False,
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
}


def test_graph_breaks_are_told_with_their_reasons(inspected, tmp_path):
    path = tmp_path / "breaks.py"
    path.write_text(
        "import torch\n"
        "def breaks(x, *, form='tanh'):\n"
        "    y = torch.nn.functional.gelu(x, approximate='tanh')\n"
        "    torch._dynamo.graph_break()\n"
        "    return y * 1\n"
    )
    row, files = inspected("compiled", COMPILED | {"of": f"{path}:breaks"})
    assert row.status == "ok", row.reason
    assert row.metrics["why"].startswith("torch.compile left the graph in ")
    assert "  graph break, " in files["summary.txt"].read_text()
    assert {"generated_0.py", "generated_1.py"} <= set(files)


def test_a_recompilation_is_told_with_torchs_reason():
    torch._dynamo.reset()
    from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

    clear_compilation_metrics()
    counters.clear()
    double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    double(torch.ones(3))
    assert compilations() == []
    double(torch.ones(4))
    if not hasattr(get_compilation_metrics()[0], "recompile_reason"):
        pytest.skip("this torch does not say why it compiled again")
    (reason,) = compilations()
    assert reason.startswith("compiled again: ")
    assert "size mismatch" in reason
    torch._dynamo.reset()


def test_torchs_own_operators_on_a_cpu_show_no_code(tmp_path):
    with pytest.raises(CannotMeasure, match="impl=compiled shows"):
        Inspect(reference=None, arch=None).measure(
            Call(lambda: (torch.ones(3),)), MeasureContext("cpu", None, tmp_path)
        )


@with_triton
def test_triton_is_as_it_was_afterwards():
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from runner.kernels.gelu import triton as gelu
    from runner.measure.inspect.programs import compiling_for, seeing

    before = JITFunction.run, vars(driver).copy(), gelu.require_gpu
    with compiling_for(90, without_gpu=True):
        assert gelu.require_gpu is not before[2]
    with seeing():
        assert JITFunction.run is not before[0]
    assert (JITFunction.run, vars(driver), gelu.require_gpu) == before


def test_time_is_shared_by_programs_of_one_name_and_the_rest_is_torchs():
    seen = Seen([Program("k<float>", "cuda", b"1", launches=3), Program("k<double>", "cuda", b"2")])
    found = kernel_lines(
        seen, {"void k<float>(long long)": (3, 30.0), "void k<double>(long long)": (1, 10.0), "c": (2, 90.0)}
    )
    assert [(line.kernel, line.origin, line.launches, line.total_us) for line in found] == [
        ("c", "by name", 2, 90.0),
        ("k<float>", "cuda", 3, 30.0),
        ("k<double>", "cuda", 1, 10.0),
    ]
    assert dominant(found).kernel == "c"
    assert dominant([]) is None


ARRAY = """
extern "C" __global__ void array(const float* x, float* y, const int* at, int n) {
    float found[32] = {};
    for (int i = 0; i < n; i++) found[at[i] & 31] += x[i];
    float sum = 0;
    for (int i = 0; i < 32; i++) sum += found[i] * i;
    y[threadIdx.x] = sum;
}
"""
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) spills(const float* x, float* y, int n) {
    float found[128];
    #pragma unroll
    for (int i = 0; i < 128; i++) found[i] = x[i * 1024 + threadIdx.x];
    for (int k = 0; k < n; k++) {
        #pragma unroll
        for (int i = 0; i < 128; i++) found[i] = found[i] * found[(i + 1) % 128] + found[(i + 77) % 128];
    }
    #pragma unroll
    for (int i = 0; i < 128; i++) y[i * 1024 + threadIdx.x] = found[i];
}
"""


@with_triton
@with_nvrtc
@pytest.mark.parametrize(
    ("name", "source", "where"),
    [("array", ARRAY, "local memory"), ("spills", SPILLS, "local memory for lack of registers")],
)
def test_an_array_that_is_asked_for_by_an_index_is_no_want_of_registers(tmp_path, name, source, where):
    (tmp_path / "local.cu").write_text(source)
    (line,) = kernel_lines(Seen([of_cuda(tmp_path / "local.cu", name, "sm_90a", 0, cuda_build)]), {})
    slow = {"gpu_us": 900.0, "pct_of_measured_peak": 30.0, "bound": "memory", "n_kernels": 1}
    told = explain(Facts(slow, "float32", main=line))
    assert told.startswith(f"{name} keeps {line.spill_bytes} bytes per thread in {where}; ")


def test_how_often_a_generated_graph_launches_a_kernel_is_told_by_cupti():
    seen = Seen(
        [Program("triton_0", "inductor", b"1"), Program("_gelu", "inductor", b"2"), Program("k", "triton", b"3")]
    )
    found = kernel_lines(seen, {"triton_0": (4, 40.0), "_gelu": (2, 30.0), "k": (2, 20.0)})
    assert [(line.kernel, line.launches, line.total_us) for line in found] == [
        ("triton_0", 4, 40.0),
        ("_gelu", 2, 30.0),
        ("k", 1, 20.0),  # it was seen once
    ]


def test_the_same_program_twice_is_two_launches():
    seen = Seen()
    for cubin in (b"1", b"1", b"2"):
        seen.add(Program("k", "triton", cubin))
    assert [program.launches for program in seen.programs] == [2, 1]


def test_the_kernels_of_a_generated_module_are_those_it_has_launched(tmp_path, monkeypatch):
    """The modules are made by hand, in the form in which torch lists them."""
    import torch._inductor.codecache as codecache

    from runner.measure.inspect.programs import inductor_programs

    asm = {"cubin": b"code", "ptx": "ptx"}
    binary = SimpleNamespace(asm=asm, metadata=SimpleNamespace(name="k", shared=8))
    modules = []
    for name, text in {"other": "other", "first": "source", "again": "source"}.items():
        (tmp_path / f"{name}.py").write_text(text)
        modules.append(SimpleNamespace(__file__=str(tmp_path / f"{name}.py")))
    modules[1].triton_0 = SimpleNamespace(launchers=[SimpleNamespace(bin=binary)])
    modules[1].triton_1 = SimpleNamespace(launchers=[SimpleNamespace(cache_hash=None)])
    modules[1].never_run = SimpleNamespace(launchers=[])
    monkeypatch.setattr(codecache.PyCodeCache, "modules", modules)
    unread = []
    assert inductor_programs("source", unread) == [Program("k", "inductor", b"code", {"ptx": "ptx"}, 8)]
    assert unread == ["triton_1: it is no longer in Triton's cache"]
    assert inductor_programs("unknown", unread) == []


def test_a_kernel_of_torchs_own_launcher_is_found_in_tritons_cache(tmp_path, monkeypatch):
    """The folder is made by hand, with the layout of Triton's cache."""
    from runner.measure.inspect.programs import inductor_program

    folder = tmp_path / "ABC"
    folder.mkdir()
    told = '{"name": "k", "shared": 64}'
    for name, text in {"k.json": told, "__grp__k.json": "{}", "k.ptx": "ptx", "k.cubin": "code"}.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = inductor_program("k_0", SimpleNamespace(cache_hash="ABC"))
    assert program == Program("k", "inductor", b"code", {"ptx": "ptx"}, 64)  # as CUPTI calls it too
    assert inductor_program("k_0", SimpleNamespace(cache_hash="gone")) is None


@pytest.mark.gpu
class TestOnAGpu:
    def test_gelu_in_triton_is_wide_and_spills_nothing(self, inspected):
        row, files = inspected("triton", device="cuda")
        assert row.status == "ok", row.reason
        metrics = row.metrics
        assert {"why", "kernel_name", "load_bits"} <= metrics.keys()
        assert metrics["kernel_name"] == "_gelu"
        assert (metrics["load_bits"], metrics["store_bits"], metrics["kernel_spill_bytes"]) == (128, 128, 0)
        assert {f"gelu.{stage}" for stage in ("ttir", "ttgir", "llir", "ptx", "sass")} <= set(files)
        (line,) = table(files)
        assert float(line["total_us"]) > 0

    def test_the_lectures_gelu_computes_in_double_precision(self, inspected):
        row, files = inspected("cuda", CUDA | {"variant": "lecture"}, device="cuda")
        assert row.status == "ok", row.reason
        assert row.metrics["fp64_instructions"] > 20
        assert row.metrics["load_bits"] == 32
        assert {"gelu_kernel.ptx", "gelu_kernel.sass"} <= set(files)
        assert "DFMA" in files["gelu_kernel.sass"].read_text()

    def test_a_product_of_bfloat16_runs_on_tensor_cores(self, inspected):
        row, files = inspected("triton", workload=("matmul", MATMUL), device="cuda")
        assert row.status == "ok", row.reason
        assert row.metrics["tensor_instructions"] > 0
        if torch.cuda.get_device_capability()[0] == 9:
            code = "".join(path.read_text() for name, path in files.items() if name.endswith(".sass"))
            assert "HGMMA" in code

    @pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
    def test_what_torch_compile_generated_is_shown_with_its_kernels(self, inspected, mode):
        row, files = inspected("compiled", COMPILED | {"mode": mode}, device="cuda")
        assert row.status == "ok", row.reason
        assert "@triton" in files["generated_0.py"].read_text()
        lines = table(files)
        (line,) = (line for line in lines if line["origin"] == "inductor")
        assert line["kernel"].startswith("triton_poi_fused_gelu")
        assert float(line["total_us"]) > 0
        assert int(line["load_bits"]) >= 64  # Inductor's choice: 128 at one size, 64 at another
        copies = [line for line in lines if line["origin"] == "by name"]  # of the input, into what the graph reads
        assert len(copies) == (1 if mode == "reduce-overhead" else 0)
        assert any(name.endswith(".ttir") for name in files)

    def test_of_torchs_own_kernels_the_names_are_told(self, inspected):
        row, files = inspected("torch", device="cuda")
        assert row.status == "ok", row.reason
        (line,) = table(files)
        assert line["origin"] == "by name"
        assert "elementwise" in line["kernel"]
        assert row.metrics["why"].endswith(f"; {NAMES}")

    def test_a_cuda_graph_of_triton_kernels_is_told_by_names(self, inspected):
        row, files = inspected("cudagraph", {"of": "triton"}, device="cuda")
        assert row.status == "ok", row.reason
        (line,) = table(files)
        assert (line["kernel"], line["origin"]) == ("_gelu", "by name")

    @pytest.mark.parametrize("impl", ["triton", "cuda"])
    def test_for_another_architecture_it_is_compiled_and_not_launched(self, inspected, impl):
        row, files = inspected(impl, CUDA if impl == "cuda" else {}, device="cuda", arch=80)
        assert row.status == "ok", row.reason
        assert row.metrics["why"].startswith("compiled for sm_80, and not launched")
        (sass,) = (path.read_text() for name, path in files.items() if name.endswith(".sass"))
        assert "sm_80" in sass

"""The commands a user types, on a real GPU."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import get_args, get_type_hints

import pytest

from runner.records.options import CONF, option_class

pytestmark = pytest.mark.gpu

HERE = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}


@pytest.fixture
def on_gpu(run):
    def go(*arguments, **changes):
        return run(*arguments, env=HERE, **changes)

    return go


def statuses(result):
    return [row["status"] for row in result.rows()]


def test_the_mlp_compiled_over_its_default_sweep(on_gpu):
    result = on_gpu("workload=mlp", "impl=compiled", "-m")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 4
    assert all(row["metrics"]["verdict"] != "fallback" for row in result.rows())


def test_four_implementations_of_gelu(on_gpu):
    result = on_gpu("workload=gelu", "impl=naive,torch,compiled,triton", "-m")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 12
    for row in result.rows():
        metrics = row["metrics"]
        assert row["device"] != "cpu"
        assert metrics["instrument"] == "graph_timestamps"
        assert metrics["n_kernels"] == (9 if row["case"]["impl"]["name"] == "naive" else 1)
        assert metrics["gpu_us"] < metrics["latency_us"]
        assert metrics["bitwise_repeatable"] is True
        assert "side_effects" not in metrics
        assert 0 < metrics["pct_of_measured_peak"] < 105
    assert len(result.records("rounds")) == 3
    assert all(len(rounds["batches_us"]) == 4 for rounds in result.records("rounds"))


def test_where_launching_limits_a_case_the_table_shows_what_a_caller_gets(on_gpu):
    small = ["workload=mlp", "workload.dim=64", "workload.batch=64", "workload.layers=6", "default_axes=false"]
    result = on_gpu(*small, "impl=naive,cudagraph", "impl.of=naive", "-m")
    assert result.code == 0, result.out + result.err
    head = next(line for line in result.out.splitlines() if line.startswith(" implementation"))
    assert head.split()[1:3] == ["time", "pipelined"], result.out
    said = next(line for line in result.out.splitlines() if "fastest by GPU time: " in line)
    assert said.endswith("by pipelined time (calls back to back): cudagraph"), said


def test_what_the_first_use_of_libraries_changes_is_no_side_effect(on_gpu, tmp_path):
    (tmp_path / "user.py").write_text(
        "import torch\n"
        "def gelu(x): return torch.nn.functional.gelu(x, approximate='tanh')\n"
        "fast = torch.compile(gelu)\n"
        "def compiled(x): return fast(x)\n"
        "def replaces(x):\n"
        "    torch.nn.functional.relu = torch.relu\n"
        "    return gelu(x)\n"
    )
    paths = ",".join(f"{tmp_path}/user.py:{name}" for name in ("compiled", "replaces"))
    result = on_gpu("workload=gelu", "workload.cols=256,512", "impl=file,torch", f"impl.path={paths}", "-m")
    assert statuses(result) == ["ok"] * 6, result.out + result.err
    changed = [row["metrics"].get("side_effects") for row in result.rows()]
    assert changed == [None, "torch.nn.functional.relu; judged again in a fresh process", None] * 2


def test_a_compiled_backward_of_ones_own_operation_runs_again_and_again(on_gpu, tmp_path):
    (tmp_path / "rms.py").write_text(
        "import torch\ndef inputs(size=256): return torch.randn(size, size), torch.ones(size)\n"
        "def reference(x, w): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w\n"
    )
    result = on_gpu(f"workload={tmp_path}/rms.py", "impl=compiled", "workload.pass=bwd")
    assert statuses(result) == ["ok"], result.out + result.err


def test_a_backward_alone_is_what_a_call_launches(on_gpu):
    words = ["workload=gelu,softmax", "workload.pass=bwd", "workload.cols=1024"]
    result = on_gpu(*words, "impl=torch,compiled,triton", "-m")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 6
    for row in result.rows():
        assert row["metrics"]["instrument"] == "graph_timestamps"
        multiplies_first = (row["case"]["workload"]["name"], row["case"]["impl"]["name"]) == ("softmax", "torch")
        assert row["metrics"]["n_kernels"] == 1 + multiplies_first


def test_a_cuda_graph_of_the_mlp_is_timed_by_its_kernels_and_waited_for_less(on_gpu):
    result = on_gpu("workload=mlp", "workload.layers=4", "impl=triton,cudagraph", "-m")
    assert statuses(result) == ["ok", "ok"]
    eager, graph = (row["metrics"] for row in result.rows())  # cudagraph's own is of triton
    assert graph["instrument"] == eager["instrument"] == "graph_timestamps"
    assert graph["n_kernels"] == eager["n_kernels"]
    assert graph["latency_us"] < eager["latency_us"] / 4


def test_the_mlp_in_triton_in_every_type(on_gpu):
    words = ["workload=mlp", "workload.layers=3", "workload.dim=264", "workload.batch=200"]
    result = on_gpu(*words, "workload.dtype=float32,float16,bfloat16,float64", "impl=triton", "-m")
    assert statuses(result) == ["ok"] * 4, result.out


def test_matmuls_of_three_sizes_and_two_types(on_gpu):
    arguments = ["workload.size=1024,2048,4096", "workload.dtype=float32,bfloat16"]
    result = on_gpu("workload=matmul", *arguments, "impl=torch", "-m")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 6


def test_tf32_is_a_field_and_shows_in_error_and_time(on_gpu):
    result = on_gpu("workload=matmul", "workload.size=2048", "workload.tf32=false,true", "-m")
    exact, fast = (row["metrics"] for row in result.rows())
    assert fast["gpu_us"] < exact["gpu_us"] / 2
    assert fast["max_abs_err"] > 10 * exact["max_abs_err"]
    assert fast["correct"] is True


def test_mlps_naive_and_compiled(on_gpu):
    layers = ["workload.layers=2,3,4,5", "workload.batch=256"]
    result = on_gpu("workload=mlp", *layers, "impl=naive,compiled", "-m")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 8


def test_every_pass_of_the_mlp_compiles_and_is_right(on_gpu):
    fields = ["workload.pass=fwd,fwd_bwd,train_step", "workload.zero_grad=every_step,accumulate", "workload.steps=3"]
    result = on_gpu(
        "workload=mlp", *fields, "workload.layers=2", "impl=compiled", "impl.mode=default,reduce-overhead", "-m"
    )
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"] * 12
    assert all(row["metrics"]["verdict"] != "fallback" for row in result.rows())


def test_one_softmax(on_gpu):
    result = on_gpu("workload=softmax", "workload.rows=4096", "workload.cols=1000", "impl=torch")
    assert result.code == 0, result.out + result.err
    assert statuses(result) == ["ok"]


SMALLER = {"cnn_step": "workload.steps=4"}  # a call of a hundred steps takes minutes to judge with naive
WORKLOADS: dict[tuple[str, ...], list[str]] = defaultdict(
    list
)  # by types that they take and size, for one command each
for _name in sorted(path.stem for path in CONF.glob("workload/*.yaml")):
    _allowed = get_args(get_type_hints(option_class("models", _name))["dtype"])
    _dtypes = ",".join(dtype for dtype in ("float32", "float16", "bfloat16", "float64") if dtype in _allowed)
    WORKLOADS[_dtypes, *filter(None, [SMALLER.get(_name)])].append(_name)


@pytest.mark.parametrize("same", sorted(WORKLOADS, key=lambda same: len(WORKLOADS[same])), ids=",".join)
def test_workloads_are_right_in_every_type(on_gpu, same):
    short = [f"measure.benchmark.{field}" for field in ("max_s=0.05", "captures=2", "paired_rounds=0")]
    names, (dtypes, *smaller) = WORKLOADS[same], same
    words = [f"workload={','.join(names)}", f"workload.dtype={dtypes}", "impl=naive,torch", *smaller, *short]
    result = on_gpu(*words, "default_axes=false", "-m", timeout_s=600)
    wrong = []
    for row in result.rows():
        workload, status, reason = row["case"]["workload"], row["status"], row["reason"]
        refused = status == "unsupported" and ("one for each rank" in reason or workload["name"] == "cdist")
        if status != "ok" and not refused:
            wrong.append(f"{workload['name']} {workload['dtype']} {row['case']['impl']['name']}: {status}: {reason}")
    assert not wrong, "\n".join(wrong)
    assert len(result.rows()) == len(names) * len(dtypes.split(",")) * 2, result.out + result.err


FAULTY = """
import torch, triton, triton.language as tl

@triton.jit
def _far_away(x, y): tl.store(y + tl.program_id(0).to(tl.int64) * 2**33, tl.load(x))

def far_away(x):
    y = torch.empty_like(x); _far_away[(64,)](x, y); return y
def asserts(x): return x[torch.full((1,), 2**40, device=x.device)]
def fills(x): return torch.empty(2**44, dtype=torch.uint8, device=x.device)
def in_place(x): return x.copy_(right(x))
def synchronises(x):
    y = right(x); y.sum().item(); return y
def right(x): return torch.nn.functional.gelu(x, approximate="tanh")
"""


def test_faults_on_the_gpu_cost_their_own_case(on_gpu, tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    names = ["right", "far_away", "asserts", "fills", "in_place", "synchronises"]
    paths = ",".join(f"faulty.py:{name}" for name in names)
    result = on_gpu("workload=gelu", "workload.cols=1024", "impl=file", f"impl.path={paths}", "-m")
    rows = {row["case"]["impl"]["path"].partition(":")[2]: row for row in result.rows()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "right": "ok",
        "far_away": "cuda_error",
        "asserts": "cuda_error",
        "fills": "oom",
        "in_place": "ok",
        "synchronises": "ok",
    }
    assert rows["synchronises"]["metrics"]["instrument"] == "stream_timestamps"
    assert rows["in_place"]["metrics"]["mutates_inputs"] is True
    assert rows["in_place"]["metrics"]["gpu_us"] < 3 * rows["right"]["metrics"]["gpu_us"]

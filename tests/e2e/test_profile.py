"""``measure=profile`` as a user types it: on the CPU, and on a real GPU."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

QUICK = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02", "measure.benchmark.warmup_s=0"]
MLP = ["workload=mlp", "workload.dim=16", "workload.layers=2", "workload.batch=8"]
BOTH = "measure=[benchmark,profile]"
GPU = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}


def lines(folder, row, name):
    """The table of that name of one row."""
    (path,) = [folder / file for file in row["files"] if file.endswith(f"/profile/{name}.csv")]
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def wandb_reader():
    path = Path(__file__).resolve().parents[1] / "report" / "wandb_reader.py"
    spec = importlib.util.spec_from_file_location("tests_e2e_wandb_reader", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_the_files_and_wandb_have_a_profile_on_the_cpu(run, tmp_path):
    home = {"HOME": str(tmp_path)}
    result = run(*MLP, "impl=naive", "device=cpu", BOTH, *QUICK, "log.wandb.mode=offline", log="wandb", env=home)
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    assert row["status"] == "ok"
    assert row["metrics"]["wall_us"] > 0
    assert "profile_slowdown" in row["metrics"]
    assert not {"not_measured", "profile_gpu_us", "profile_launch_us", "profile_top_kernel"} & row["metrics"].keys()
    assert "mlp naive: profile" in result.out
    assert "aten::mm" in result.out
    assert "  call/step_0" in result.out
    assert [line["part"] for line in lines(result.folder, row, "parts")][:3] == [
        "call",
        "call/step_0",
        "call/step_0/forward",
    ]
    kept = {f"profile/{name}" for name in ("flame.svg", "ops.csv", "parts.csv", "stacks.txt", "trace.json.gz")}
    assert {"/".join(file.split("/")[-2:]) for file in row["files"]} == kept | {"profile/summary.txt"}
    reader = wandb_reader()
    (path,) = (result.folder / "wandb").glob("offline-run-*/*.wandb")
    records = [record.artifact for record in reader.records(path) if record.WhichOneof("record_type") == "artifact"]
    (artifact,) = [artifact for artifact in records if artifact.type == "measurements"]
    assert sorted(entry.path for entry in artifact.manifest.contents) == sorted(row["files"])
    recorded = reader.read(path.parent)
    (tables,) = [entry for entry in recorded.history if "profile/ops" in entry]
    table = recorded.table(tables["profile/ops"])
    assert table["columns"][:3] == ["case", "implementation", "op"]
    assert len(table["data"]) == len(lines(result.folder, row, "ops"))


def test_a_profile_alone_is_a_row_without_a_time(run):
    result = run(*MLP, "impl=torch", "device=cpu", "measure=profile", "measure.profile.active=2")
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    assert row["status"] == "ok"
    assert "wall_us" not in row["metrics"]
    assert row["metrics"]["profile_note"] == ""


@pytest.mark.long
def test_what_is_compiled_is_profiled_as_it_was_timed(run):
    result = run(*MLP, "impl=compiled", "device=cpu", BOTH, *QUICK)
    assert result.statuses() == {"compiled": "ok"}, result.out + result.err
    assert "not_measured" not in result.rows()[0]["metrics"]


@pytest.mark.gpu
def test_nine_kernels_of_a_naive_gelu_and_one_of_others(run):
    result = run("workload=gelu", "workload.cols=4096", "impl=naive,torch,triton", BOTH, "-m", env=GPU)
    assert result.code == 0, result.out + result.err
    for row in result.rows():
        metrics, name = row["metrics"], row["case"]["impl"]["name"]
        assert "not_measured" not in metrics, metrics["not_measured"]
        assert metrics["profile_kernels"] == (9 if name == "naive" else 1)
        assert metrics["profile_note"] == ""
        kernels = lines(result.folder, row, "kernels")
        assert sum(float(line["count"]) for line in kernels) == metrics["profile_kernels"]
        assert sum(float(line["share_pct"]) for line in kernels) == pytest.approx(100)
        ops = {line["op"] for line in kernels}
        if name == "naive":
            assert ops == {"aten::mul", "aten::add", "aten::tanh"}
            assert 50 < metrics["profile_busy_pct"] < 100
            assert metrics["profile_idle_us"] > 0
        else:
            assert ops == {"aten::gelu" if name == "torch" else ""}
            assert metrics["profile_busy_pct"] == pytest.approx(100)
            assert metrics["profile_idle_us"] == pytest.approx(0, abs=1e-3)
        assert 0 < metrics["profile_launch_us"] < 200
        assert metrics["profile_launch_to_start_us"] >= 0
        assert metrics["profile_top_kernel"]


@pytest.mark.gpu
def test_the_profilers_time_is_the_benchmarks_within_3_percent(run):
    """Five cases of one kernel each, each twice as long as the last: of more kernels, the benchmark times gaps too."""
    sizes = ["workload.rows=8192", "workload.cols=2048,4096,8192,16384,32768"]
    result = run("workload=gelu", *sizes, "impl=torch", BOTH, "-m", env=GPU)
    assert result.code == 0, result.out + result.err
    rows = result.rows()
    assert len(rows) == 5
    found = {row["case"]["workload"]["cols"]: row["metrics"] for row in rows}
    apart = {cols: metrics["profile_gpu_us"] / metrics["gpu_us"] - 1 for cols, metrics in found.items()}
    assert all(abs(part) <= 0.03 for part in apart.values()), apart


@pytest.mark.gpu
def test_parts_of_a_training_step_have_their_kernels_and_autograds_thread_too(run):
    words = ["workload=mlp", "workload.layers=2", "workload.steps=1", "workload.pass=train_step", "impl=naive"]
    result = run(*words, BOTH, "measure.profile.stacks=true", "measure.profile.memory=true", env=GPU)
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    metrics = row["metrics"]
    assert "not_measured" not in metrics, metrics["not_measured"]
    parts = {line["part"].split("/")[-1]: float(line["kernels"]) for line in lines(result.folder, row, "parts")}
    assert parts.pop("zero_grad") == 0  # the gradients are given up, not filled with zeros
    assert set(parts) == {"call", "step_0", "forward", "layer_0", "layer_1", "loss", "backward", "optimizer_step"}
    assert all(count > 0 for count in parts.values())
    assert parts["step_0"] == parts["forward"] + parts["backward"] + parts["optimizer_step"]
    assert parts["step_0"] <= metrics["profile_kernels"] == metrics["n_kernels"]
    ops = {line["op"] for line in lines(result.folder, row, "kernels")}
    assert "" not in ops
    assert "aten::mm" in ops
    text = (result.folder / next(file for file in row["files"] if file.endswith("stacks.txt"))).read_text()
    assert "kernels/mlp/naive.py(" in text
    assert any(float(line["memory_bytes"]) > 0 for line in lines(result.folder, row, "costs"))
    trace = next(file for file in row["files"] if file.endswith("trace.json.gz"))
    with gzip.open(result.folder / trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert {"kernel", "cuda_runtime", "cpu_op", "user_annotation"} <= {event.get("cat") for event in events}


@pytest.mark.gpu
def test_a_cuda_graph_has_one_launch_and_all_its_kernels(run):
    words = ["workload=mlp", "workload.layers=2", "workload.steps=1", "impl=cudagraph"]
    result = run(*words, BOTH, env=GPU)
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    assert row["metrics"]["profile_kernels"] == row["metrics"]["n_kernels"] > 1
    assert row["metrics"]["profile_note"] == ""

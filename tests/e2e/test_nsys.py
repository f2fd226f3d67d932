"""``measure=nsys`` as a user types it: on a CPU it says where to go, on a GPU it agrees with the benchmark."""

from __future__ import annotations

import csv
import os
import re

import pytest

from runner.device import tools

HERE = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
GELU = ["workload=gelu", "workload.rows=8192", "workload.cols=8192"]
MLP = ["workload=mlp", "workload.layers=2", "workload.dim=1024", "workload.batch=1024"]
BOTH = "measure=[benchmark,nsys]"


def test_on_a_cpu_the_row_keeps_its_time_and_says_where_to_go(run):
    quick = ["measure.benchmark.samples=20", "measure.benchmark.max_s=0.02"]
    small = ["workload.rows=8", "workload.cols=8", "device=cpu"]
    result = run("workload=gelu", *small, BOTH, "measure.nsys.args=['--sample=process-tree']", *quick)
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    assert row["metrics"]["wall_us"] > 0
    assert row["metrics"]["not_measured"].startswith("nsys: nsys records a GPU, and this case is on the CPU")
    asked = {measure["name"]: measure for measure in row["case"]["measures"]}
    assert asked["nsys"]["args"] == ["--sample=process-tree"]
    resumed = run("resume=last")
    assert "1 of 1 cases kept" in resumed.out + resumed.err


@pytest.fixture
def seen(run):
    """A row that nsys has seen, the tables by their names, and what the user was shown."""
    if tools.find_tool("nsys") is None:
        pytest.skip("Nsight Systems (nsys) is not on PATH, nor where it is installed")

    def go(*arguments):
        result = run(*arguments, env=HERE)
        assert result.code == 0, result.out + result.err
        (row,) = result.rows()
        assert row["status"] == "ok", row
        assert "not_measured" not in row["metrics"], row["metrics"]["not_measured"]
        tables = {}
        for file in row["files"]:
            path = result.folder / file
            assert path.is_file()
            if path.parent.name == "nsys" and path.suffix == ".csv":
                with open(path, newline="") as lines:
                    tables[path.stem] = list(csv.DictReader(lines))
        return row, tables, result.out

    return go


def ranges(tables):
    return {line["part"]: {name: value for name, value in line.items() if name != "range"} for line in tables["parts"]}


@pytest.mark.gpu
def test_one_kernel_takes_as_long_as_the_benchmark_says(seen):
    row, tables, out = seen(*GELU, BOTH)
    metrics = row["metrics"]
    assert metrics["nsys_gpu_us"] == pytest.approx(metrics["gpu_us"], rel=0.03)
    assert metrics["nsys_kernels"] == metrics["n_kernels"] == 1
    assert metrics["nsys_idle_us"] == 0
    assert metrics["nsys_launch_to_start_us"] >= 0
    assert metrics["nsys_slowdown"] > 0.5
    names = {file.rpartition("/")[2] for file in row["files"]}
    assert names >= {
        "report.nsys-rep",
        "command.txt",
        "summary.txt",
        "nsys.log",
        "kernels.csv",
        "parts.csv",
        "api.csv",
    }
    assert [float(line["count"]) for line in tables["kernels"]] == [1]  # and no flush
    assert "nsys profile --trace=cuda,nvtx" in out
    assert "kernels, copies and fills of a call: 1" in out


@pytest.mark.gpu
def test_without_a_benchmark_the_overhead_is_against_calls_of_its_own(seen):
    row, _, _ = seen(*GELU, "measure=nsys", "measure.nsys.calls=5")
    assert row["metrics"]["nsys_slowdown"] > 0.5
    assert "gpu_us" not in row["metrics"]
    note = row["metrics"]["nsys_note"]
    assert note == "" or re.fullmatch(r"Installed CUDA driver version .* is not supported by this build .*", note)


@pytest.mark.gpu
def test_the_parts_of_a_training_step_have_their_gpu_time_the_backward_too(seen):
    row, tables, _ = seen(*MLP, "workload.pass=train_step", BOTH)
    lines = ranges(tables)
    assert float(lines["call"]["count"]) == 1
    assert "define_model" not in lines  # which lies before the range that is captured
    for part in ("forward", "forward/layer_0", "forward/layer_1", "backward", "optimizer_step"):
        for step in ("step_0", "step_1"):
            assert float(lines[f"call/{step}/{part}"]["gpu_busy_us"]) > 0, part
    whole = float(lines["call"]["gpu_us"])
    steps = sum(float(lines[f"call/step_{step}"]["gpu_us"]) for step in (0, 1))
    assert steps == pytest.approx(whole, rel=0.05)
    assert float(lines["call/step_0/backward"]["gpu_us"]) > float(lines["call/step_0/forward"]["gpu_us"])
    assert row["metrics"]["nsys_kernels"] == row["metrics"]["n_kernels"]


@pytest.mark.gpu
def test_full_shows_the_making_of_the_model_and_counts_the_same_calls(seen):
    row, tables, _ = seen(*MLP, BOTH, "measure.nsys.preset=full", "measure.nsys.calls=5")
    lines = ranges(tables)
    assert float(lines["call"]["count"]) == 1
    assert float(lines["define_model"]["gpu_busy_us"]) > 0
    assert float(lines["warm_up"]["gpu_busy_us"]) > 0
    assert row["metrics"]["nsys_kernels"] == row["metrics"]["n_kernels"]


@pytest.mark.gpu
def test_kernels_of_a_cuda_graph_are_told_apart(seen):
    row, tables, _ = seen(*MLP, "impl=cudagraph", "impl.of=torch", BOTH)
    assert row["metrics"]["nsys_kernels"] == row["metrics"]["n_kernels"] > 10
    assert any(line["api"].startswith("cudaGraphLaunch") for line in tables["api"])


@pytest.mark.gpu
def test_printing_the_loss_shows_as_a_wait_within_each_step(seen):
    waits = {}
    for prints in ("false", "true"):
        row, tables, _ = seen(*MLP, f"workload.print_loss={prints}", BOTH)
        waiting = [line for line in tables["api"] if line["api"].startswith("cudaStreamSynchronize")]
        waits[prints] = {line["part"] for line in waiting if line["part"].startswith("call/step")}
        copied = [line for line in tables.get("copies", []) if line["copy"] == "copy device to host"]
        assert {line["part"] for line in copied} == ({"call/step_0", "call/step_1"} if prints == "true" else set())
        assert row["metrics"]["instrument"] == ("stream_timestamps" if prints == "true" else "graph_timestamps")
    assert waits == {"false": set(), "true": {"call/step_0", "call/step_1"}}


@pytest.mark.gpu
def test_a_case_that_is_too_slow_for_its_limit_keeps_its_time(run):
    if tools.find_tool("nsys") is None:
        pytest.skip("Nsight Systems (nsys) is not on PATH, nor where it is installed")
    result = run(*GELU, BOTH, "measure.nsys.limit_s=2", env=HERE)
    (row,) = result.rows()
    assert row["metrics"]["gpu_us"] > 0
    assert row["metrics"]["not_measured"].startswith("nsys: it was not done after 2 s and was ended")

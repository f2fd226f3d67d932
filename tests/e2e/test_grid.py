"""Whole runs through the real command line, on the CPU: rows, table, files, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import yaml

from runner.api import frame
from runner.config import plan
from runner.records.options import CONF
from runner.store import journal

SMALL = ["workload.rows=64", "workload.cols=100"]
QUICK = ["samples=20", "max_s=0.02", "warmup_s=0"]
QUICK = [f"measure.benchmark.{setting}" for setting in QUICK]
ROUNDS = [
    "samples=20",
    "max_s=60",
    "warmup_s=0",
    "paired_rounds=10",
    "target_cpu_pct=1e6",
]  # 20 samples and ten rounds, however busy it is
ROUNDS = [f"measure.benchmark.{setting}" for setting in ROUNDS]


def test_implementations_are_compared_and_the_fastest_marked(run):
    result = run(
        "workload=gelu", "impl=naive,torch,triton", "workload.rows=64", "workload.cols=512,1024", *ROUNDS, "-m"
    )
    assert result.code == 0, result.err
    assert result.statuses() == {"naive": "ok", "torch": "ok", "triton": "unsupported"}
    marks = result.out.count("★") + (result.out.count("\n ≈ ") // 2)  # of two that are tied, both are marked
    assert marks == 2 or (marks < 2 and "contended" in result.out)  # beside other processes a pair may stay uncompared
    assert "gelu cols=512" in result.out
    assert "gelu cols=1024" in result.out
    assert "rows=64" in result.out  # what is constant stands in the title
    assert "Triton kernels need an NVIDIA GPU; to check this one on a CPU: debug=interpret" in result.out
    for row in result.rows():
        if row["status"] == "ok":
            metrics = row["metrics"]
            assert metrics["correct"] is True
            assert metrics["err_over_tol"] <= 1
            assert metrics["low_us"] <= metrics["wall_us"] <= metrics["high_us"]
            assert metrics["q1_us"] <= metrics["median_us"] <= metrics["q3_us"]
            assert metrics["samples"] >= 5
            assert metrics["flops"] == 9 * 64 * row["case"]["workload"]["cols"]
            assert metrics["peak_mem_bytes"] >= 4 * 64 * row["case"]["workload"]["cols"]


def test_workloads_run_naive_torch_and_compiled(run, tmp_path):
    sizes = {
        "gelu": {"rows": 32, "cols": 33},
        "softmax": {"rows": 32, "cols": 33},
        "matmul": {"size": 48},
        "cdist": {"n": 32, "m": 33, "d": 8},
        "mlp": {"dim": 16, "layers": 2, "batch": 8},
    }
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    for name, size in sizes.items():
        values = yaml.safe_load((CONF / "workload" / f"{name}.yaml").read_text())
        text = yaml.safe_dump({**values, **size, "axes": {}})
        (tmp_path / "mine" / "workload" / f"small_{name}.yaml").write_text(text)
    grid = ["--config-dir", str(tmp_path / "mine"), *QUICK, "-m"]
    result = run(*grid, "workload=small_softmax,small_matmul,small_cdist", "impl=naive,torch")
    assert result.code == 0, result.out + result.err
    assert [row["status"] for row in result.rows()] == ["ok"] * 6
    result = run(*grid, "workload=small_gelu,small_mlp", "impl=naive,torch,compiled")
    assert result.code == 0, result.out + result.err
    assert [row["status"] for row in result.rows()] == ["ok"] * 6
    for metrics in [row["metrics"] for row in result.rows() if row["case"]["impl"]["name"] == "compiled"]:
        assert metrics["graph_breaks"] == 0
        assert "side_effects" not in metrics
        assert 0 < metrics["compile_s"] <= metrics["first_call_s"] + 0.5  # backward compiles within the call
        assert metrics["verdict"] != "fallback"


@pytest.mark.long
def test_backward_alone_runs_naive_torch_and_compiled(run):
    words = ["workload=softmax", "workload.pass=bwd", "workload.rows=32", "workload.cols=33"]
    result = run(*words, "impl=naive,torch,compiled,triton", *QUICK, "-m")
    assert result.code == 0, result.out + result.err
    for row in result.rows():
        name, metrics = row["case"]["impl"]["name"], row["metrics"]
        assert row["status"] == ("unsupported" if name == "triton" else "ok"), row["reason"]
        if name != "triton":
            assert metrics["bytes_min"] == 3 * 4 * 32 * 33
            assert metrics["err_over_tol"] <= 1
            assert metrics["verdict"] != "fallback"


def test_a_cuda_graph_on_a_cpu_says_what_would_help(run):
    words = ["workload=mlp", "workload.dim=16", "workload.layers=2", "workload.batch=8", "impl=torch,cudagraph"]
    result = run(*words, "impl.of=torch,compiled", *QUICK, "-m")
    assert [row["status"] for row in result.rows()] == ["ok", "unsupported", "unsupported"]
    assert "a CUDA graph needs an NVIDIA GPU" in result.rows()[1]["reason"]


def test_the_workloads_default_sweep_unfolds_under_m_only(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    fast = ["workload.dim=8", "workload.batch=4", *QUICK]
    assert [row["case"]["workload"]["layers"] for row in run("workload=mlp", *fast, "-m").rows()] == [2, 3, 4, 5]
    assert [case.workload.fields["layers"] for case in plan(["workload=mlp", *fast]).cases] == [4]


def test_the_folder_holds_rows_configs_and_environment(run):
    result = run("workload=softmax", *SMALL, *ROUNDS, "impl=naive,torch", "-m", "name=mine")
    folder = result.folder
    assert folder is not None
    assert folder.name.endswith("-mine")
    table = pandas.read_csv(folder / "rows.csv")
    assert list(table["impl"]) == ["naive", "torch"]
    assert set(table["workload.cols"]) == {100}
    assert (table["time_us"] > 0).all()
    assert table["speedup"][1] == 1.0
    (rounds,) = journal.load(folder).rounds
    naive, torch = (rounds.batches_us[key] for key in table["key"])
    ratios = [theirs / mine for mine, theirs in zip(naive, torch, strict=True)]
    assert len(ratios) == 10
    assert table["speedup"][0] == pytest.approx(statistics.geometric_mean(ratios))
    assert table["speedup_low"][0] < table["speedup"][0] < table["speedup_high"][0]
    assert table["vs_baseline"][0] in ("slower", "unclear", "same", "faster")
    assert table["paired"][0]
    assert list(table["fastest"]) in (["yes", "no"], ["no", "yes"], ["tied", "tied"])
    assert table["gbps"][0] == pytest.approx(2 * 64 * 100 * 4 / table["time_us"][0] / 1e3)
    configs = list(yaml.safe_load_all((folder / "configs.yaml").read_text()))
    assert [config["impl"]["name"] for config in configs[1:]] == ["naive", "torch"]
    environment = json.loads((folder / "environment.json").read_text())
    assert "workload=softmax" in environment["command"]
    assert environment["worker"]["torch"]
    assert environment["worker"]["gpu"] is None
    assert environment["hostname"]


def test_speed_ups_are_against_the_baseline_asked_for_and_so_they_are_read_back(run):
    result = run("workload=gelu", *SMALL, *QUICK, "impl=naive,torch", "baseline=naive", "-m")
    table = pandas.read_csv(result.folder / "rows.csv")
    assert table["speedup"][0] == 1.0
    assert list(frame.load(result.folder)["speedup"]) == pytest.approx(list(table["speedup"]))
    naive, torch = frame.load(result.folder, baseline="torch")["speedup"]
    assert (naive, torch) == (pytest.approx(1 / table["speedup"][1]), 1.0)


def test_a_variant_may_be_the_baseline_by_the_label_that_the_table_prints(run, tmp_path):
    (tmp_path / "two.py").write_text("def f(x): return x.softmax(-1)\ndef g(x): return x.softmax(-1)\n")
    files = ["impl=file", "impl.path=two.py:f,two.py:g"]
    for label in ("file(g)", "file(path=two.py:g)"):
        result = run("workload=softmax", *SMALL, *QUICK, *files, f"baseline={label}", "-m")
        assert result.code == 0, result.err
        (base,) = [line for line in result.out.splitlines() if "1 (base)" in line]
        assert "file(g)" in base
        for table in (pandas.read_csv(result.folder / "rows.csv"), frame.load(result.folder)):
            assert table.set_index("implementation")["speedup"]["file(g)"] == 1.0


FAULTY = """
import ctypes, os, time, torch

def right(x, form): return torch.nn.functional.gelu(x, approximate="tanh")
def wrong(x): return x.clamp(min=0)
def in_place(x): return x.copy_(torch.nn.functional.gelu(x, approximate="tanh"))
def other_dtype(x): return right(x.double(), "tanh")
def raises(x): raise ValueError("no such luck")
def segfault(x):
    print("last words")
    ctypes.string_at(0)
def leaves(x): os._exit(3)
def hangs(x):
    while True: time.sleep(0.1)
def asks(x): return input("password?")
def fills(x): return torch.empty(2**62, dtype=torch.uint8)
def chats(x):
    print('{"row": 1}')
    return right(x, "tanh")
"""


@pytest.fixture
def faulty(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    return "impl.path=" + ",".join(
        f"faulty.py:{line.split('(')[0][4:]}" for line in FAULTY.splitlines() if line[:4] == "def "
    )


def test_a_failing_case_is_a_row_and_the_rest_goes_on(run, faulty):
    result = run("workload=gelu", "impl=file", faulty, *SMALL, *QUICK, "launcher.build_limit_s=3", "-m")
    assert result.code == 1
    rows = {row["case"]["impl"]["path"].partition(":")[2]: row for row in result.rows()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "right": "ok",
        "wrong": "wrong",
        "in_place": "ok",
        "other_dtype": "wrong",
        "raises": "error",
        "segfault": "crashed",
        "leaves": "crashed",
        "hangs": "timeout",
        "asks": "error",
        "fills": "oom",
        "chats": "ok",
    }
    assert rows["raises"]["reason"] == "ValueError: no such luck"
    assert (result.folder / rows["raises"]["files"][0]).read_text() == rows["raises"]["detail"]
    assert re.search(
        rf"error: ValueError: no such luck \(faulty.py:\d+\); its traceback: {result.folder}/files/\w+/error.txt",
        result.out,
    )
    assert "faulty.py" in rows["raises"]["detail"]  # the whole traceback
    assert rows["segfault"]["reason"] == "the worker was killed by SIGSEGV in phase build"
    assert "last words" in rows["segfault"]["detail"]
    assert rows["leaves"]["reason"] == "the worker exited with code 3 in phase build"
    assert "no end of phase build within 3 s; raise launcher.build_limit_s" in rows["hangs"]["reason"]
    assert "elements wrong, worst at" in rows["wrong"]["reason"]
    assert "dtype torch.float64 where torch.float32 is expected" in rows["other_dtype"]["reason"]
    assert rows["in_place"]["metrics"]["mutates_inputs"] is True  # and they were put back before every call
    assert rows["right"]["metrics"]["mutates_inputs"] is False
    assert all("wall_us" not in row["metrics"] for row in rows.values() if row["status"] != "ok")
    assert re.search(r"11 cases: 3 ok( \(.*\))?, 2 wrong, 2 error, 2 crashed, 1 timeout, 1 oom", result.out)


def test_a_users_function_stands_beside_torch_in_one_sweep(run, faulty):
    result = run("workload=gelu", "impl=torch,file", "impl.path=faulty.py:right", *SMALL, *QUICK, "-m")
    assert result.code == 0, result.err
    assert result.statuses() == {"torch": "ok", "file": "ok"}


def test_a_wrong_implementation_is_timed_if_asked(run, faulty):
    result = run("workload=gelu", "impl=file", "impl.path=faulty.py:wrong", *SMALL, *QUICK, "time_wrong=true")
    assert result.code == 1
    (row,) = result.rows()
    assert row["status"] == "wrong"
    assert row["metrics"]["verdict"] == "wrong"
    assert row["metrics"]["wall_us"] > 0


def test_the_interpreter_checks_a_triton_kernel_and_never_times_it(run):
    result = run("workload=softmax", "impl=triton", *SMALL, *QUICK, env={"TRITON_INTERPRET": "1"})
    (row,) = result.rows()
    assert result.code == 0
    assert row["status"] == "unsupported"
    assert row["metrics"]["correct"] is True
    assert "correct under Triton's interpreter" in row["reason"]
    assert "wall_us" not in row["metrics"]


def test_nothing_that_could_run_is_exit_1(run):
    result = run("workload=softmax", "impl=triton", *SMALL)
    assert result.code == 1
    assert result.statuses() == {"triton": "unsupported"}


def test_an_implementation_that_no_file_has_needs_no_worker(run):
    result = run("workload=cdist", "impl=split", "workload.d=2")
    (row,) = result.rows()
    assert (row["status"], row["phase"]) == ("unsupported", "plan")
    assert "kernels/cdist/split.py" in row["reason"]
    assert not (result.folder / "worker.log").exists()


def test_a_gpu_asked_for_and_not_there_is_unsupported(run):
    result = run("device=cuda", *SMALL, env={"CUDA_VISIBLE_DEVICES": ""})
    (row,) = result.rows()
    assert row["status"] == "unsupported"
    assert "torch sees no NVIDIA GPU here" in row["reason"]
    assert "gelu\ngelu: dtype" in result.out  # and not: gelu on cpu


def test_in_a_locale_without_utf_8_the_marks_are_plain(run):
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}
    result = run("impl=naive,torch", *SMALL, *QUICK, "-m", env=plain)
    assert result.code == 0, result.err
    head, line = (
        next(text for text in result.out.splitlines() if text.startswith(begin)) for begin in (" imp", " ---")
    )
    assert " +-95 % " in head
    assert set(line.strip()) == {"-"}
    assert re.search(r"\n [*~] torch ", result.out)
    assert result.out.isascii()
    assert "?" not in result.out


def test_a_users_yaml_is_an_option_like_any_other(run, tmp_path):
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    text = (
        "name: softmax\nrows: 3\ncols: 5\ndtype: float64\ntf32: false\ndata: uniform\nlayout: strided\npass: fwd\n"
        "axes: {cols: [5, 6]}\n"
    )
    (tmp_path / "mine" / "workload" / "tiny.yaml").write_text(text)
    result = run("--config-dir", str(tmp_path / "mine"), "workload=tiny", *QUICK, "-m")
    assert result.code == 0, result.err
    assert [row["case"]["workload"]["cols"] for row in result.rows()] == [5, 6]


def test_an_experiment_is_a_study_by_one_name(run):
    result = run("+experiment=compare_gelu", "impl=torch", "workload.rows=8", "workload.cols=8", *QUICK, "-m")
    assert result.code == 0, result.err
    assert [row["case"]["workload"]["dtype"] for row in result.rows()] == ["float32", "bfloat16"]
    assert result.folder.name.endswith("-compare_gelu")


def test_eager_code_under_the_name_of_compiled_is_reported(run, tmp_path):
    code = (
        "import torch\n@torch.compiler.disable\ndef gelu(x): return torch.nn.functional.gelu(x, approximate='tanh')\n"
    )
    (tmp_path / "eager.py").write_text(code)
    result = run("impl=compiled", "impl.of=eager.py:gelu", *SMALL, *QUICK)
    (row,) = result.rows()
    assert row["metrics"]["verdict"] == "fallback", row
    assert "eager" in row["metrics"]["verdict_reason"]


@pytest.mark.long
def test_a_mode_without_effect_on_a_cpu_is_reported(run):
    result = run("impl=compiled", "impl.mode=reduce-overhead", *SMALL, *QUICK)
    (row,) = result.rows()
    assert row["metrics"]["verdict"] == "fallback"
    assert "without CUDA graphs, which a CPU does not have" in row["metrics"]["verdict_reason"]


def test_a_kill_loses_at_most_the_case_in_flight(command, tmp_path, folder_with_rows):
    words, options = command("workload=gelu", "workload.rows=8", "workload.cols=range(1,500)", *QUICK, "-m")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    path = folder_with_rows(20) / "rows.jsonl"
    process.kill()
    process.wait()
    records = [
        json.loads(line) for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")
    ]
    started = {record["key"] for record in records if record["record"] == "start"}
    done = {record["key"] for record in records if record["record"] == "row"}
    assert len(done) >= 20
    assert len(started - done) <= 1


@pytest.mark.parametrize("number", [2, 15], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_with_the_table_of_what_there_is(command, tmp_path, number, folder_with_rows):
    words, options = command("workload=gelu", "workload.rows=8", "workload.cols=range(1,300)", *QUICK, "-m")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    path = folder_with_rows(5) / "rows.jsonl"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert "not run" in out
    assert f"runner: interrupted; to go on: python -m runner resume={path.parent}" in err
    table = pandas.read_csv(path.parent / "rows.csv")
    assert len(table) == path.read_text().count('"record":"row"') >= 5


WANDB = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_loader

class Finder:
    def find_spec(self, name, path=None, target=None):
        return spec_from_loader(name, SourceFileLoader(name, {path!r})) if name == "wandb" else None

for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
    del sys.modules[name]
sys.meta_path.insert(0, Finder())
"""


def with_wandb(folder, text):
    """A PYTHONPATH with which ``import wandb`` runs ``text``, in a process that has imported wandb as well."""
    (folder / "wandb.txt").write_text(text)
    (folder / "path").mkdir()
    (folder / "path" / "sitecustomize.py").write_text(WANDB.replace("{path!r}", repr(str(folder / "wandb.txt"))))
    return os.pathsep.join([str(folder / "path"), str(Path(__file__).resolve().parents[2])])


def test_a_second_interrupt_ends_it_at_once_and_costs_no_row(
    command, tmp_path, survivors, folder_with_rows, eventually
):
    waited_for = tmp_path / "waited_for"
    hangs = f"import pathlib, time\npathlib.Path({str(waited_for)!r}).touch()\ntime.sleep(1000)"
    path = with_wandb(tmp_path, hangs)  # what comes after the last row
    grid = ["workload=gelu", "workload.rows=8", "workload.cols=range(1,300)", *QUICK, "-m"]
    grid.append("log.wandb.mode=offline")
    words, options = command(*grid, log="wandb", env={"PYTHONPATH": path, "MARKED": str(tmp_path)})
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    rows = folder_with_rows(5) / "rows.jsonl"
    process.send_signal(signal.SIGINT)
    assert eventually(lambda: waited_for.exists() or process.poll() is not None)
    assert process.poll() is None
    time.sleep(1)  # it has begun, and soon its parent waits for it
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 30
    assert process.returncode == 130
    assert not [line for line in err.splitlines() if "this will take about " not in line and "to go on: " not in line]
    assert "not logged (interrupted); the results are in" in out
    assert (rows.parent / "rows.csv").read_text().count("gelu") == rows.read_text().count('"record":"row"') >= 5
    assert not survivors(f"MARKED={tmp_path}")


def test_a_dropped_in_kernel_is_found_without_an_edit(run, tmp_path):
    """One file in kernels/gelu/ of an installed copy: no YAML, no registry."""
    import shutil

    root = Path(__file__).resolve().parents[2]
    for name in ("runner", "kernel_runner", "kernels", "models", "conf"):
        shutil.copytree(
            root / name, tmp_path / "copy" / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    code = "import torch\ndef gelu(x, *, form): return torch.nn.functional.gelu(x, approximate=form)\n"
    (tmp_path / "copy" / "kernels" / "gelu" / "fancy.py").write_text(code)
    path = os.pathsep.join([str(tmp_path / "copy"), os.environ.get("PYTHONPATH", "")])
    result = run("impl=fancy", *SMALL, *QUICK, env={"PYTHONPATH": path})
    assert result.code == 0, result.err
    assert result.statuses() == {"fancy": "ok"}


def test_without_a_key_wandb_is_left_out_and_the_line_to_share_the_run_printed(run, tmp_path):
    result = run("impl=naive,torch", *SMALL, *QUICK, "-m", log="wandb", env={"HOME": str(tmp_path)})
    assert result.code == 0, result.err
    line = next(line for line in result.out.splitlines() if line.startswith("W&B: "))
    share = "to share this run: wandb login, then python -m runner report wandb "
    assert line == f"W&B: not logged (no API key); {share}{result.folder}"
    assert not list(result.folder.glob("wandb*"))
    assert "W&B" not in run("impl=naive", *SMALL, *QUICK, log="", env={"HOME": str(tmp_path)}).out  # not chosen, a pipe


def test_an_offline_run_of_wandb_is_kept_and_the_line_to_sync_it_printed(run, tmp_path):
    words = ("impl=torch", *SMALL, *QUICK, "log.wandb.mode=offline")
    result = run(*words, log="wandb", env={"HOME": str(tmp_path)})
    assert result.code == 0, result.err
    line = next(line for line in result.out.splitlines() if line.startswith("W&B: "))
    assert "kept offline (log.wandb.mode=offline); to upload: wandb sync " in line
    assert list((tmp_path / line.partition("wandb sync ")[2]).glob("*.wandb"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_what_cannot_be_printed_ends_no_run(command, tmp_path):
    words, options = command("impl=naive,torch", *SMALL, *QUICK, "-m")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False, **options
        )
    assert "the table cannot be printed: No space left on device. The results are in " in done.stderr
    (table,) = tmp_path.glob("outputs/*/*/rows.csv")
    assert table.read_text().count("\n") == 3


def test_a_finished_run_is_logged_once_by_whom_it_is_resumed_with(run, tmp_path):
    home = {"HOME": str(tmp_path)}
    assert "W&B" not in run("impl=torch", *SMALL, *QUICK, env=home).out
    assert "W&B: not logged (no API key)" in run("resume=last", log="wandb", env=home).out
    assert "W&B" not in run("resume=last", log="wandb", env=home).out


def test_a_broken_wandb_costs_no_row_and_no_exit_code(run, tmp_path):
    path = with_wandb(tmp_path, "raise ImportError('no W&B here')")
    words = ("impl=torch", *SMALL, *QUICK, "log.wandb.mode=offline")
    result = run(*words, log="wandb", env={"PYTHONPATH": path})
    assert result.code == 0
    assert "W&B: not logged (the W&B client exited with code 1: ImportError: no W&B here)" in result.out
    assert result.statuses() == {"torch": "ok"}


LOSES_THE_TABLE = """
import glob, os, torch

def f(x):
    os.makedirs(glob.glob("outputs/*/*")[0] + "/rows.csv", exist_ok=True)
    return torch.nn.functional.gelu(x, approximate="tanh")
"""


def test_a_run_whose_rows_cannot_be_written_as_a_table_ends_with_1(run, tmp_path):
    (tmp_path / "k.py").write_text(LOSES_THE_TABLE)
    result = run("impl=file", "impl.path=k.py:f", *SMALL, *QUICK)
    assert result.statuses() == {"file": "ok"}
    assert result.code == 1
    assert "rows.csv cannot be written: " in result.out

"""A user's function that changes what all cases of a process share: its row says so, and no other row is affected."""

from __future__ import annotations

import pytest

from runner.store import journal

QUICK = [f"measure.benchmark.{setting}" for setting in ("samples=20", "max_s=0.05", "warmup_s=0")]
SLOW_S = 0.05

USER = f"""
import os, signal, time, torch
gelu = torch.nn.functional.gelu

def right(x): return gelu(x, approximate="tanh")

def slows_gelu(x):
    def slower(*tensors, **options):
        time.sleep({SLOW_S})
        return gelu(*tensors, **options)
    torch.nn.functional.gelu = slower
    return right(x)

def replaces_equal(x):
    torch.equal = lambda *_: True
    return right(x)

def replaces_abs_and_is_wrong(x):
    torch.Tensor.abs = lambda tensor: tensor - tensor
    return right(x) + 1

def computes_outside_of_the_time_and_is_wrong(x):
    y = torch.empty_like(x)
    def detach(tensor):
        if tensor.data_ptr() == y.data_ptr(): y.copy_(right(x))
        return detached(tensor)
    torch.Tensor.detach = detach
    return y

def sets_a_timer(x):
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 1000)
    return right(x)

def uses_vmap(x): return torch.func.vmap(right)(x)  # torch registers kernels for it at the first use

def registers_a_wrong_kernel(x):
    register("sub.Tensor", lambda a, b, alpha=1: torch.zeros(a.shape))
    return torch.zeros(x.shape)

def registers_a_right_kernel(x):
    register("cosh", lambda a: (a.exp() + (-a).exp()) / 2)
    return right(x)

def register(operator, kernel):
    if not kept:
        kept.append(torch.library.Library("aten", "IMPL"))
        kept[0].impl(operator, kernel, "CPU")

def flushes_denormals(x):
    torch.set_flush_denormal(True)
    return right(x)

def stops_the_clock(x):
    time.perf_counter = time.perf_counter_ns = lambda: 0
    return right(x)

kept = []
detached = torch.Tensor.detach
"""
AGAIN = "; judged again in a fresh process"
CHANGED = {
    "slows_gelu": f"torch.nn.functional.gelu{AGAIN}",
    "replaces_equal": f"torch.equal{AGAIN}",
    "replaces_abs_and_is_wrong": "torch.Tensor.abs",
    "computes_outside_of_the_time_and_is_wrong": "torch.Tensor.detach",
    "sets_a_timer": "the timer ITIMER_REAL, the handler of SIGALRM",
    "stops_the_clock": "time.perf_counter",
    "flushes_denormals": f"the floating-point mode of the CPU{AGAIN}",
    "registers_a_right_kernel": f"the kernel of aten::cosh (CPU){AGAIN}",
}


SHORT = ["computes_outside_of_the_time_and_is_wrong", "sets_a_timer", "registers_a_right_kernel"]


@pytest.mark.parametrize(
    "names", [SHORT, pytest.param([one for one in CHANGED if one not in SHORT], marks=pytest.mark.long)]
)
def test_what_a_case_changes_is_in_its_row_and_in_no_other(run, tmp_path, names):
    (tmp_path / "user.py").write_text(USER)
    words = ["workload=gelu", "workload.rows=64", "workload.cols=64", "impl=file,naive,torch"]
    result = run(*words, "impl.path=" + ",".join(f"{tmp_path}/user.py:{name}" for name in names), *QUICK, "-m")
    assert result.code == any(name.endswith("wrong") for name in names), result.out + result.err
    ours = [row for row in result.rows() if row["case"]["impl"]["name"] == "file"]
    assert len(ours) == len(names)
    for row in ours:
        name = row["case"]["impl"]["path"].partition(":")[2]
        assert row["status"] == ("wrong" if name.endswith("wrong") else "ok"), name
        assert row["metrics"]["side_effects"] == CHANGED[name]
        assert f"it changed {CHANGED[name]}; its process ended" in result.out
    others = [row for row in result.rows() if row["case"]["impl"]["name"] != "file"]
    assert len(others) == 2
    for row in others:
        assert (row["status"], row["metrics"]["attempt"]) == ("ok", 1)
        assert "side_effects" not in row["metrics"]
        assert 0 < row["metrics"]["wall_us"] < SLOW_S * 1e6
    keys = {row["key"] for row in ours}
    assert not any(keys & one.batches_us.keys() for one in journal.load(result.folder).rounds)


def test_outputs_that_only_a_registered_kernel_calls_right_are_wrong(run, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    words = ("workload=gelu", "workload.rows=64", "workload.cols=64", "impl=file,torch", "-m")
    paths = [f"{tmp_path}/user.py:{name}" for name in ("uses_vmap", "registers_a_wrong_kernel")]
    result = run(*words, f"impl.path={','.join(paths)}", *QUICK)
    with_vmap, mine, torch = result.rows()
    assert with_vmap["status"] == "ok"
    assert "side_effects" not in with_vmap["metrics"]
    assert mine["status"] == "wrong"
    assert mine["reason"].startswith("y: ")
    assert mine["metrics"]["side_effects"] == f"the kernel of aten::sub.Tensor (CPU){AGAIN}"
    assert (torch["status"], torch["metrics"].get("side_effects")) == ("ok", None)


@pytest.mark.parametrize("check", ["", "def check(inputs, outputs): return None if outputs['y'].is_conj() else 'no'\n"])
def test_a_conjugated_output_in_a_dict_is_judged_again_as_such(run, tmp_path, check):
    (tmp_path / "mine.py").write_text(
        f"import torch\n{check}"
        "def inputs(n=64): return torch.randn(n, dtype=torch.complex64)\n"
        "def reference(x): return {'y': (2 * x).conj(), 'size': len(x)}\n"
        "def replaces_tan(x):\n"
        "    torch.Tensor.tan = lambda tensor: tensor\n"
        "    return reference(x)\n"
    )
    result = run(f"workload={tmp_path}/mine.py", "impl=file", f"impl.path={tmp_path}/mine.py:replaces_tan", *QUICK)
    (row,) = result.rows()
    assert (row["status"], row["metrics"]["side_effects"]) == ("ok", f"torch.Tensor.tan{AGAIN}")
    assert row["metrics"]["correct"] is True


def test_the_fresh_process_runs_no_code_of_a_result(run, tmp_path):
    (tmp_path / "task.py").write_text(
        "import torch\ndef inputs(n=64): return torch.randn(n)\ndef reference(x): return x.exp(), x.sin()\n"
    )
    (tmp_path / "user.py").write_text(
        "import torch\n"
        "class Result(tuple):\n"
        "    def __reduce__(self): return exec, ('import os; os._exit(3)',)\n"
        "def replaces_tan(x):\n"
        "    torch.Tensor.tan = lambda tensor: tensor\n"
        "    return Result([x.exp(), x.sin()])\n"
    )
    (row,) = run(
        f"workload={tmp_path}/task.py", "impl=file", f"impl.path={tmp_path}/user.py:replaces_tan", *QUICK
    ).rows()
    assert (row["status"], row["metrics"]["side_effects"]) == ("ok", f"torch.Tensor.tan{AGAIN}")


def test_a_meta_tensor_is_wrong(run, tmp_path):
    (tmp_path / "user.py").write_text("def meta(x): return x.to('meta')\n")
    result = run("workload.rows=8", "workload.cols=8", "impl=file", f"impl.path={tmp_path}/user.py:meta", *QUICK)
    assert result.code == 1
    (row,) = result.rows()
    assert (row["status"], row["reason"]) == ("wrong", "y: on device meta where cpu is expected")


def test_a_thread_that_keeps_computing_ends_its_worker_and_is_named(run, tmp_path):
    (tmp_path / "user.py").write_text(
        "import threading, torch\n"
        "def spin():\n"
        "    while True: sum(range(1000))\n"
        "threading.Thread(target=spin, daemon=True, name='prefetch').start()\n"
        "def f(x): return torch.nn.functional.gelu(x, approximate='tanh')\n"
    )
    words = ("workload=gelu", "workload.rows=64", "workload.cols=64", "impl=file,torch", "-m")
    result = run(*words, f"impl.path={tmp_path}/user.py:f", *QUICK)
    assert "an earlier case has left threads computing (prefetch): a new worker takes over" in result.out + result.err
    assert [row["status"] for row in result.rows()] == ["ok", "ok"]


FIRST = """import torch
def f(x):
    torch.nn.functional.mish = None  # nobody watches this
    return torch.nn.functional.gelu(x, approximate="tanh")
"""
SECOND = """import torch
def f(x):
    torch.nn.functional.mish(x)
    return torch.nn.functional.gelu(x, approximate="tanh")
"""


@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_after_code_of_another_file_is_tried_once_more_in_a_new_worker(run, tmp_path, broken):
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "second.py").write_text(SECOND.replace("mish(x)", "mish()") if broken else SECOND)
    words = ("workload=gelu", "workload.rows=64", "workload.cols=64", "impl=file", "-m")
    result = run(*words, f"impl.path={tmp_path}/first.py:f,{tmp_path}/second.py:f", *QUICK)
    first, second = result.rows()
    assert (first["status"], first["metrics"]["attempt"]) == ("ok", 1)
    assert (second["status"], second["metrics"]["attempt"]) == ("error" if broken else "ok", 2)


def test_a_failure_of_the_same_file_is_not_tried_again(run, tmp_path):
    (tmp_path / "user.py").write_text(FIRST + "def g(x): raise ValueError('never right')\n")
    words = ("workload=gelu", "workload.rows=64", "workload.cols=64", "impl=file", "-m")
    result = run(*words, f"impl.path={tmp_path}/user.py:f,{tmp_path}/user.py:g", *QUICK)
    assert [(row["status"], row["metrics"]["attempt"]) for row in result.rows()] == [("ok", 1), ("error", 1)]


def test_a_replaced_method_of_a_class_that_the_reference_calls_judges_no_other_case(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Scaler:\n"
        "    def apply(self, x): return 2 * x\n"
        "def inputs(n=64): return torch.randn(n), Scaler()\n"
        "def reference(x, scaler): return scaler.apply(x)\n"
        "def right(x, scaler): return x + x\n"
        "def replaces(x, scaler):\n"
        "    Scaler.apply = lambda self, x: x.abs()\n"
        "    return x.abs()\n"
    )
    result = run(f"workload={tmp_path}/mine.py", "workload.n=64,128", "impl=replaces,right", *QUICK, "-m")
    assert [row["status"] for row in result.rows()] == ["wrong", "ok"] * 2
    changed = [row["metrics"].get("side_effects") for row in result.rows()]
    assert changed == ["the method Scaler.apply", None] * 2

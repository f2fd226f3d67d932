"""Task files in public formats, through the command line: a table, a folder with bad tasks, and each refusal."""

from __future__ import annotations

import json
import shlex

import pytest

from runner.report.reproduce import command
from runner.store.journal import read_rows

QUICK = ("device=cpu", "quick=true", "measure.benchmark.max_s=0.02", "measure.benchmark.paired_rounds=0")
KERNELBENCH = """import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.layer, self.kernel = nn.Linear(width, width), kernel
    def forward(self, x): return torch.relu(self.layer(x)) * self.kernel[0]
rows, width = 16, 8
kernel = (3, 4)
def get_inputs(): return [torch.rand(rows, width)]
def get_init_inputs(): return [width, kernel]
"""
NEW = """import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.kernel, self.layer = kernel, nn.Linear(width, width)
    def forward(self, x): return (x @ self.layer.weight.T + self.layer.bias).clamp(min=0) * self.kernel[0]
class Wrong(ModelNew):
    def forward(self, x): return super().forward(x) * 1.01
class Renamed(ModelNew):
    def __init__(self, width, kernel):
        torch.rand(1)
        super().__init__(width, kernel)
        self.linear = self.layer
class Prepared(ModelNew):
    ready = False
    def forward(self, x):
        if not self.ready:
            self.prepare()
            self.ready = True
        return torch.addmm(self.layer.bias, x, self.weight()).clamp(min=0) * self.kernel[0]
class InPlace(Prepared):
    def prepare(self): self.layer.weight.data.copy_(self.layer.weight.data.t().clone())
    def weight(self): return self.layer.weight
class Buffer(Prepared):
    def prepare(self): self.register_buffer("packed", self.layer.weight.detach().t().contiguous())
    def weight(self): return self.packed
class Drifting(ModelNew):
    def forward(self, x):
        y = super().forward(x)
        self.layer.weight.data.mul_(1.01)
        return y
"""
IMPORTING = """import torch
from torch import nn
{line}
class Model(nn.Module):
    def forward(self, x): return 2 * x
def get_inputs(): return [torch.rand(64{device})]
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "relu.py").write_text(KERNELBENCH)
    (tmp_path / "new.py").write_text(NEW)
    return tmp_path


def outcomes(result):
    """Name of the workload, and status, of each row."""
    return [(row["case"]["workload"]["name"], row["status"]) for row in result.rows()]


def test_a_task_of_kernelbench_beside_a_class_in_a_file(run, here, monkeypatch):
    words = ("workload=kernelbench", "workload.path=relu.py", "workload.rows=4,8", "workload.kernel=[5,6]", "-m")
    result = run(*words, "impl=reference,file", "impl.path=new.py:ModelNew,new.py:Wrong,new.py:Renamed", *QUICK)
    assert result.code == 1, result.out + result.err
    assert [status for _, status in outcomes(result)] == ["ok", "ok", "wrong", "wrong"] * 2
    rows = list(result.rows())
    assert [row["metrics"].get("weights") for row in rows[:3]] == [None, *["those of the reference"] * 2]
    assert ["; its weights are its own: " in row["reason"] for row in rows[2:4]] == [False, True]
    assert rows[0]["case"]["workload"]["kernel"] == [5, 6]
    monkeypatch.chdir(here)
    last = read_rows(result.folder)[1].case
    again = run(*shlex.split(command(last))[3:])
    assert [row.case for row in read_rows(again.folder)] == [last]


def test_a_class_may_prepare_its_weights_once_and_not_change_them_at_each_call(run, here):
    paths = ",".join(f"new.py:{name}" for name in ("InPlace", "Buffer", "Drifting"))
    result = run("workload=kernelbench", "workload.path=relu.py", "impl=file", f"impl.path={paths}", *QUICK, "-m")
    assert [status for _, status in outcomes(result)] == ["ok", "ok", "wrong"], result.out + result.err


def test_a_folder_is_one_run_and_a_bad_task_costs_its_own_row(run, here):
    (here / "level").mkdir()
    (here / "level" / "10_relu.py").write_text(KERNELBENCH)
    (here / "level" / "2_bad.py").write_text(KERNELBENCH + "def broken(:\n")
    (here / "level" / "3_needs.py").write_text(IMPORTING.format(line="import a_package_that_is_not_there", device=""))
    network = "raise OSError('no hub') from ConnectionError('Failed to resolve')"
    (here / "level" / "4_network.py").write_text(IMPORTING.format(line=network, device=""))
    (here / "level" / "5_gpu.py").write_text(IMPORTING.format(line="", device=", device='cuda'"))
    result = run("workload=kernelbench", "workload.path=level/*.py", "impl=reference", "-m", *QUICK)
    names = ["2_bad.py", "3_needs.py", "4_network.py", "5_gpu.py", "10_relu.py"]
    assert outcomes(result) == [*((name, "unsupported") for name in names[:-1]), (names[-1], "ok")]
    reasons = [row["reason"] for row in result.rows()]
    assert reasons[0].endswith("level/2_bad.py, line 12: invalid syntax")
    assert reasons[1] == "its inputs need the package a_package_that_is_not_there; install it to run this"
    assert reasons[2].startswith("it needs the network, ")
    assert reasons[3].startswith("it asks for a GPU, and torch sees none here")
    assert "reference(" not in result.out  # each row has the reference of its own file
    assert result.folder.name.endswith("-5-workloads")


def test_lines_of_a_definition_are_a_set_of_shapes(run, here):
    reference = "def run(x, scale): return x * scale"
    inputs = {"x": {"shape": ["rows", "width"], "dtype": "float32"}, "scale": {"shape": None, "dtype": "float32"}}
    axes = {"rows": {"type": "var"}, "width": {"type": "const", "value": 8}}
    outputs = {"y": {"shape": ["rows", "width"], "dtype": "float32"}}
    given = {"x": {"type": "random"}, "scale": {"value": 0.5}}
    lines = [{"axes": {"rows": n}, "inputs": given, "tolerance": {"max_atol": n}} for n in (4, 6)]
    (here / "twice").mkdir()
    definition = {"axes": axes, "inputs": inputs, "outputs": outputs, "reference": reference}
    (here / "twice" / "definition.json").write_text(json.dumps(definition))
    (here / "twice" / "workload.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sources = [{"path": "main.py", "content": "def run(x, scale, y): y.copy_(x * scale + 5)\n"}]
    (here / "mine.json").write_text(json.dumps({"spec": {"entry_point": "main.py::run"}, "sources": sources}))
    words = ("workload=flashinfer", "workload.path=twice", "+shapes=lines", "-m", "device=cpu", "impl=reference,file")
    result = run(*words, "impl.path=mine.json:run", *QUICK)
    rows = list(result.rows())
    assert [row["status"] for row in rows] == ["ok", "wrong", "ok", "ok"], result.out + result.err
    assert [row["case"]["workload"]["rows"] for row in rows] == [4, 4, 6, 6]
    assert rows[0]["case"]["workload"]["name"] == "twice.json"
    assert rows[2]["metrics"]["tolerance"].startswith("6 + 0.01 |r|, 0.99 of the elements")


def test_a_task_with_its_own_check_and_sets_of_cases(run, here):
    (here / "twice").mkdir()
    files = '[{name: a.py, source: "@SUBMISSION@"}]'
    tests = '[{size: 3, kind: plain, seed: 1}, {size: 4, kind: "null", seed: 2}]'
    (here / "twice" / "task.yml").write_text(f"files: {files}\ntests: {tests}\n")
    (here / "twice" / "reference.py").write_text(
        "import torch\nfrom task import kinds\n"
        "def generate_input(size, seed, kind): return torch.full((size,), kinds[kind]), torch.empty(size)\n"
        "def ref_kernel(data): data[1][...] = data[0]; return data[1]\n"
        "def check_implementation(data, output): return bool((output == data[0]).all()), 'another value'\n"
    )
    (here / "twice" / "task.py").write_text("kinds = {'plain': 1.0, 'null': 2.0}\n")
    (here / "mine.py").write_text(
        "from task import kinds\ndef custom_kernel(data): return data[0] * (1 + (len(data[0]) == 4))\n"
    )
    words = ("workload=popcorn", "workload.path=twice/task.yml", "+shapes=tests", "impl=reference,file", "-m")
    result = run(*words, "impl.path=mine.py:custom_kernel", *QUICK)
    assert outcomes(result) == [("twice.task", status) for status in ("ok", "ok", "ok", "wrong")], result.err
    assert list(result.rows())[3]["reason"] == "another value"
    assert [row["case"]["workload"]["kind"] for row in result.rows()] == ["plain"] * 2 + ["null"] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workload=kernelbench"], "workload=kernelbench: say which, as in workload=kernelbench workload.path=level1/"),
        (["workload=kernelbench", "workload.path=new.py"], "new.py: it defines no inputs() beside class ModelNew, "),
        (["workload=kernelbench", "workload.path=own.py"], "own.py: written for workload=file, not for workload=kern"),
        (["workload=kernelbench", "workload.path=empty/*.py"], "workload=empty/*.py: no task is there;"),
        (["workload=relu.py", "workload.rowz=3"], "workload.rowz: no such field; did you mean rows?"),
        (
            ["workload=relu.py", "workload.kernel=3"],
            "workload.kernel: 3 is not allowed; give a list, each item",
        ),
        (["workload=./*.py"], "workload=./*.py: 2 tasks make a sweep; add -m"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(run, here, words, message):
    (here / "own.py").write_text("def inputs(n=3): return n\ndef reference(x): return x\n")
    result = run(*words, *QUICK)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1

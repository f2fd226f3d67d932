"""Tasks in the form of KernelBench and robust-kbench: fields without running the file, and the task as one file."""

from __future__ import annotations

import ast
import json

import pytest
import torch

from runner.implementations import as_function
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.subject.operation import workload_of
from runner.subject.path import checked, first_calls
from runner.tasks import formats, own_file
from runner.timing.arguments import Inputs

TASK = '''"""A task."""
from __future__ import annotations
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, scale, kernel):
        super().__init__()
        self.layer, self.scale = nn.Linear(width, width), scale
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(self.layer(x)) * self.scale

rows, width = 4 * 2, 16
height = depth = 3
unused = 5
_hidden = 1
dims = (2, 3)
kinds = [1, 2]
scale = 2.0
dtype = "float32"
shape = 7
total = rows * 2
more = total + 1
made = torch.float32

def helper(): return height + depth
def get_inputs(): return [torch.rand(total, width)] + [more, dims, shape, kinds + [3]][:0]
def get_init_inputs(): return [width, scale, kinds + [3]]
'''
KEYWORDS = """import torch
from torch import nn
def forward_fn(x, weight, eps): return x * weight + eps
class Model(nn.Module):
    def __init__(self, width, eps=0.5, other=1):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(width)), eps
    def forward(self, x, fn=forward_fn): return fn(x, self.weight, self.eps)
def get_inputs(rows=8, width=4, other=2): return [torch.randn(rows, width) + other]
"""


@pytest.fixture
def write(tmp_path):
    def written(text, name="task.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def workload(path, **fields):
    file = own_file.read(path)
    given = {"path": path, **file.fields, "dtype": None, "tf32": False, "pass": "fwd", "layout": "contiguous"}
    return workload_of(Choice("task.py", given | fields))


def test_constants_that_functions_read_are_fields(write):
    file = own_file.read(write(TASK))
    assert file.format == "kernelbench"
    expected = {"rows": 8, "width": 16, "height": 3, "depth": 3, "dims": (2, 3), "kinds": (1, 2), "scale": 2.0}
    assert dict(file.fields) == expected
    assert file.sizes == ["rows", "width", "height", "depth"]
    assert file.implementations == ("reference",)  # helper is none


@pytest.mark.parametrize("text", [TASK, TASK.replace("scale = 2.0", "scale: float = 2.0")])
def test_values_reach_constants_that_follow_from_them(write, text):
    own = workload(write(text), rows=5, width=6, kinds=(4, 5))
    model, x = own.draw("cpu", 1)[0]
    assert x.shape == (10, 6)
    assert own.module.more == 11
    assert own.module.get_init_inputs() == [6, 2.0, [4, 5, 3]]  # a list is one again
    assert model.layer.weight.shape == (6, 6)


def test_keyword_defaults_are_fields_and_go_where_they_are_taken(write):
    file = own_file.read(path := write(KEYWORDS))
    assert dict(file.fields) == {"width": 4, "eps": 0.5, "other": 2, "rows": 8}
    model, x = workload(path, width=3, eps=0.25).draw("cpu", 0)[0]
    assert (model.weight.shape, model.eps, x.shape) == ((3,), 0.25, (8, 3))


def test_a_config_beside_a_task_of_robust_kbench_gives_values_and_sets(write):
    text = KEYWORDS.replace("width, eps=0.5, other=1", "width, eps, other=1")
    with pytest.raises(TypeError, match="eps"):
        workload(write(text, "func_alone.py")).draw("cpu", 0)
    config = {"single_init_configs": [{"eps": 0.25}], "single_shared_configs": [{"width": 5}]}
    config |= {"multi_input_configs": [{"rows": 2}, {"rows": 3}], "multi_shared_configs": [{"width": 6}, {"width": 7}]}
    shapes = [], {"single_init_configs": 3}, {"single_init_configs": [3]}, {"single_init_configs": {"eps": 1}}
    for number, wrong in enumerate(shapes):
        write(json.dumps(wrong), f"config_{number}.json")
        with pytest.raises(BadInput, match=rf"config_{number}\.json is not a mapping of lists of mappings"):
            own_file.read(write(text, f"func_{number}.py"))
    write(json.dumps({"single_init_configs": [{"eps": 4}]}), "config_backward.json")
    write(json.dumps(config), "config_forward.json")
    file = own_file.read(path := write(text, "func_forward.py"))
    assert (file.fields["eps"], file.fields["width"], file.fields["rows"]) == (0.25, 5, 8)
    assert file.shapes["single"] == [{"eps": 0.25, "width": 5}]
    assert file.shapes["multi"] == [{"rows": rows, "width": width} for rows in (2, 3) for width in (6, 7)]
    (model, x), _ = workload(path, width=7).draw("cpu", 0)
    assert (model.eps, *model.weight.shape, *x.shape) == (0.25, 7, 8, 7)


def test_a_line_of_the_file_keeps_its_number(write):
    tree = formats.parse(write(TASK)).tree
    assert max(getattr(node, "end_lineno", 0) or 0 for node in ast.walk(tree)) == len(TASK.splitlines())


def test_a_class_gets_the_weights_if_names_and_shapes_agree(write):
    path = write(TASK)
    own = workload(path)
    inputs = own.draw_inputs("cpu", 7)
    namespace: dict = {}
    new = TASK.replace("class Model(", "class New(").split("rows, width")[0]
    exec(compile(new.replace("from __future__ import annotations", ""), "new", "exec"), namespace)

    def applied(cls):
        return own.call(as_function(cls), inputs)

    same = applied(namespace["New"])
    assert same.columns == {"weights": "those of the reference"}
    assert torch.equal(same.run.args[0].layer.weight, own.drawn.arguments[0][0].layer.weight)
    assert torch.equal(same.run(), own.call(own.module.reference, inputs).run())

    class Renamed(namespace["New"]):
        def __init__(self, *args):
            super().__init__(*args)
            self.linear = self.layer
            del self.layer

        def forward(self, x):
            return self.norm(self.linear(x)) * self.scale

    other = applied(Renamed)
    assert other.columns == {"weights": "from the same seed"}
    assert torch.equal(other.run.args[0].linear.weight, own.drawn.arguments[0][0].layer.weight)


def test_a_class_keeps_what_its_calls_make_of_its_weights(write):
    own = workload(write(TASK))
    inputs = own.draw_inputs("cpu", 7)
    model = own.drawn.arguments[0][0]
    before = model.layer.weight.clone()

    class Packs(type(model)):
        is_packed = False

        def forward(self, x):
            if not self.is_packed:
                self.layer.weight.data, self.is_packed = self.layer.weight.data.t().contiguous(), True
            return self.norm(torch.addmm(self.layer.bias, x, self.layer.weight)) * self.scale

    class Drifts(type(model)):
        def forward(self, x):
            result = super().forward(x)
            self.layer.weight.data.mul_(2)
            return result

    class Doubles(type(model)):
        def forward(self, x):
            self.double()
            return super().forward(x.double()).float()

    expected = own.expected_outputs(inputs)
    for cls, is_right in ((Packs, True), (Drifts, False), (Doubles, True)):
        call = own.call(as_function(cls), inputs)
        given = Inputs(call.arguments)
        given.copy()
        call, _ = first_calls(call, given, "cpu", peak=False)
        assert call.inputs == (own.drawn.arguments[0][1],)
        _, _, wrong = checked(call, expected, lambda: expected, given)
        assert (not wrong) == is_right, (cls, wrong)
        assert torch.equal(model.layer.weight, before)
        assert model.layer.weight.dtype == before.dtype


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
def test_gradients_of_a_class_are_compared_by_name(write, pass_):
    own = workload(write(TASK), **{"pass": pass_})
    inputs = own.draw_inputs("cpu", 7)

    class InAnotherOrder(type(own.drawn.arguments[0][0])):
        def __init__(self, *args):
            super().__init__(*args)
            layer = self.layer
            del self.layer
            self.layer = layer

    call = own.call(as_function(InAnotherOrder), inputs)
    assert own.expected_outputs(inputs).check(call.run()).reason == ""


def test_a_class_of_other_arguments_is_told_what_it_gets(write):
    own = workload(write(TASK))
    inputs = own.draw_inputs("cpu", 7)

    class New(torch.nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, x):
            return x

    with pytest.raises(TypeError, match=r"^too many positional arguments: New\(\) is called with \(int.*\)$"):
        own.call(as_function(New), inputs)


def test_weights_of_another_type_get_the_values(write):
    from runner.subject.operation import copy_weights

    model, half = torch.nn.LSTM(2, 3), torch.nn.LSTM(2, 3).half()
    assert copy_weights(model, half) == "those of the reference"
    assert torch.equal(half.weight_ih_l0, model.weight_ih_l0.half())
    again = torch.nn.LSTM(2, 3)
    copy_weights(model, again)
    x = torch.randn(4, 1, 2)
    assert torch.equal(again(x)[0], model(x)[0])  # torch keeps a list of the weights


def test_a_folder_is_its_tasks_in_the_order_of_people(tmp_path):
    for name, text in (("10_b.py", TASK), ("2_a.py", KEYWORDS), ("new.py", "def f(x): return x"), ("x.txt", TASK)):
        (tmp_path / name).write_text(text)
    assert formats.as_place(str(tmp_path)) == f"{tmp_path}/"
    expected = [f"{tmp_path}/2_a.py", f"{tmp_path}/10_b.py"]
    assert formats.find(f"{tmp_path}/") == formats.find(f"{tmp_path}/*.py") == expected

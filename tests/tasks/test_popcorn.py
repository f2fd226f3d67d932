"""Tasks with a ``task.yml``: cases, modules of other folders, and the task's own check."""

from __future__ import annotations

import pytest
import torch

from runner.implementations import loader
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.subject.operation import workload_of
from runner.tasks import formats, own_file

YAML = """
files:
  - {name: submission.py, source: "@SUBMISSION@"}
  - {name: task.py, source: task.py}
  - {name: shared.py, source: ../common/shared.py}
  - {name: reference.py, source: reference.py}
tests:
  - {size: 4, seed: 7, kind: ones}
  - {size: 5, seed: 8, kind: normal}
benchmarks:
  - {size: 64, seed: 9, kind: normal}
"""
REFERENCE = """import torch
from shared import near
from task import input_t

def generate_input(size: int, kind: str, seed: int) -> input_t:
    generator = torch.Generator().manual_seed(seed)
    x = torch.ones(size) if kind == "ones" else torch.randn(size, generator=generator)
    return x, torch.full((size,), float("nan"))

def ref_kernel(data: input_t):
    x, out = data
    out[...] = 2 * x
    return out

check_implementation = near(ref_kernel)
"""
SHARED = """import torch
def near(reference):
    def check(data, output):
        return (True, "") if torch.allclose(output, reference(data)) else (False, "not near")
    return check
"""


@pytest.fixture
def task(tmp_path):
    for name, text in (
        ("twice/task.yml", YAML),
        ("twice/reference.py", REFERENCE),
        ("twice/task.py", "input_t = tuple\n"),
        ("common/shared.py", SHARED),
        ("elsewhere/mine.py", "from task import input_t\ndef custom_kernel(data: input_t): return data[0] + data[0]\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "twice" / "task.yml"


def workload(path, **fields):
    file = own_file.read(str(path))
    given = {"path": str(path), **file.fields, "dtype": None, "tf32": False, "pass": "fwd", "layout": "contiguous"}
    return workload_of(Choice("twice.task", given | fields))


def test_cases_are_fields_and_sets_of_shapes(task):
    file = own_file.read(str(task))
    assert (file.format, dict(file.fields), file.filled) == ("popcorn", {"size": 4, "kind": "ones"}, ("seed",))
    assert file.shapes["tests"] == [{"size": 4, "kind": "ones"}, {"size": 5, "kind": "normal"}]
    assert file.shapes["benchmarks"] == [{"size": 64, "kind": "normal"}]
    assert formats.find(f"{task.parent.parent}/") == [str(task)]


def test_a_key_with_the_name_of_a_usual_field_has_another_one(task):
    task.write_text(YAML.replace("kind: ones", "shape: [2, 3]").replace("kind: normal", "shape: [4, 5]"))
    task.with_name("reference.py").write_text(
        REFERENCE.replace("kind: str", "shape: list[int]").replace('if kind == "ones"', "* shape[1] if shape[0] == 2")
    )
    tests = own_file.read(str(task)).shapes["tests"]
    assert tests == [{"size": 4, "task_shape": [2, 3]}, {"size": 5, "task_shape": [4, 5]}]
    assert workload(task).draw("cpu", 0)[0][0][0].tolist() == [3.0] * 4


def test_the_seed_is_the_runner_s(task):
    drawn = [workload(task, size=5, kind="normal").draw("cpu", seed)[0][0][0] for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_its_own_check_judges_on_inputs_as_they_were(task):
    own = workload(task, kind="normal")
    inputs = own.draw_inputs("cpu", 3)
    expected = own.expected_outputs(inputs)
    data = own.drawn.arguments[0][0]

    def writes_nothing_right(data):
        data[1].zero_()
        return data[1]

    assert expected.check(own.call(own.module.reference, inputs).run()).correct
    # The reference writes into the same buffer, which would hide the wrong result.
    assert expected.check(own.call(writes_nothing_right, inputs).run()).reason == "not near"

    def changes_its_input(data):
        data[0].zero_()
        return data[0]

    assert expected.check(own.call(changes_its_input, inputs).run()).reason == "not near"
    assert data[0].count_nonzero() == 0


def test_a_submission_anywhere_imports_the_modules_of_the_task(task):
    own = workload(task)
    inputs = own.draw_inputs("cpu", 0)
    file = task.parent.parent / "elsewhere" / "mine.py"
    function = loader.load_file(file).custom_kernel
    assert own.expected_outputs(inputs).check(own.call(function, inputs).run()).correct


def test_a_result_that_the_check_cannot_take_is_wrong(task):
    own = workload(task, kind="normal")
    inputs = own.draw_inputs("cpu", 0)
    expected = own.expected_outputs(inputs)
    # As in GPU MODE's own harness, nothing is returned, though data[1] is right.
    reason = expected.check(None, [own.module.ref_kernel(own.drawn.arguments[0][0])]).reason
    assert reason.startswith("check() raises for this result, and not for the reference's: TypeError: allclose(): ")


def test_a_check_that_fails_for_the_reference_too_is_an_error(task):
    shared = task.parent.parent / "common" / "shared.py"
    shared.write_text(SHARED.replace("torch.allclose(", "torch.no_such("))
    own = workload(task)
    inputs = own.draw_inputs("cpu", 0)
    with pytest.raises(AttributeError, match="no_such"):
        own.expected_outputs(inputs).check(own.call(own.module.reference, inputs).run())


def test_no_submission_replaces_the_functions_of_the_check(task):
    (task.parent / "submission.py").write_text(
        "import shared, torch\ndef custom_kernel(data):\n    shared.close = lambda *given: True\n    return data[0]\n"
    )
    shared = task.parent.parent / "common" / "shared.py"
    shared.write_text(SHARED.replace("torch.allclose(", "close(") + "def close(x, y): return torch.allclose(x, y)\n")
    own = workload(task, kind="normal")
    inputs = own.draw_inputs("cpu", 0)
    expected = own.expected_outputs(inputs)
    call = own.call(loader.load_file(task.parent / "submission.py").custom_kernel, inputs)
    assert expected.check(call.run()).reason == "not near"
    call.run()
    later = workload(task, size=5, kind="normal")  # in the same process
    outputs = later.call(later.module.reference, later.draw_inputs("cpu", 0)).run()
    assert later.expected_outputs(inputs).check(outputs.zero_()).reason == "not near"


def test_a_module_in_the_data_is_judged_as_it_was(task):
    (task.parent / "reference.py").write_text(
        "import torch\n"
        "from shared import near\n"
        "def generate_input(size, kind, seed): return {'model': torch.nn.Linear(size, size), 'x': torch.ones(size)}\n"
        "def ref_kernel(data): return data['model'](data['x'])\n"
        "check_implementation = near(ref_kernel)\n"
    )
    own = workload(task)
    inputs = own.draw_inputs("cpu", 0)
    expected = own.expected_outputs(inputs)

    def without_weights(data):
        data["model"].weight.data.zero_()
        return data["model"].bias

    assert expected.check(own.call(own.module.reference, inputs).run()).correct
    assert expected.check(own.call(without_weights, inputs).run()).reason == "not near"


def test_a_check_that_returns_a_bool_alone_is_refused(task):
    shared = task.parent.parent / "common" / "shared.py"
    shared.write_text(SHARED.replace('(True, "")', "True"))
    own = workload(task)
    inputs = own.draw_inputs("cpu", 0)
    outputs = own.call(own.module.reference, inputs).run()
    with pytest.raises(TypeError, match=r"check_implementation returned a bool; return \(right, reason\)"):
        own.expected_outputs(inputs).check(outputs)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("task.yml", "tests: [", "not valid YAML: "),
        ("task.yml", "files: []", r"generate_input needs size, kind, which no test of task\.yml gives$"),
        ("reference.py", "def ref_kernel(data): ...", "reference.py defines no generate_input, check_implementation"),
        ("reference.py", "def (", "line 1: invalid syntax"),
        (
            "reference.py",
            REFERENCE.replace("(size", "(rank, length, size"),
            r"generate_input needs rank, length, which no test of task\.yml gives; tasks for several GPUs do not",
        ),
    ],
)
def test_a_mistake_is_one_line(task, name, text, message):
    (task.parent / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        own_file.read(str(task))


def test_a_file_of_a_task_names_the_task(task):
    with pytest.raises(BadInput, match=r"reference\.py: it is a part of a task; give workload=.*/task\.yml$"):
        own_file.read(str(task.with_name("reference.py")))

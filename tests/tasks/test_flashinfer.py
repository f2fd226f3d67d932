"""Definitions with lines of workloads, as one file: fields, inputs, tolerances, and outputs that are given."""

from __future__ import annotations

import json

import pytest
import torch

from runner.implementations import as_function
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.subject.operation import workload_of
from runner.tasks import formats, own_file

REFERENCE = """import torch
def made(axes, device): return {"x": torch.full((axes["T"], axes["H"]), axes["eps"], device=device)}
def run(x, proj, rstd, ids, eps): return (2 * x.to(torch.float32) + eps).to(x.dtype)
"""
DEFINITION = {
    "name": "twice",
    "axes": {
        "T": {"type": "var"},
        "H": {"type": "const", "value": 64},
        "half": {"type": "expr", "expression": "H // 2"},
    },
    "inputs": {
        "x": {"shape": ["T", "H"], "dtype": "float16"},
        "proj": {"shape": ["T", "half"], "dtype": "float8_e4m3fn"},
        "rstd": {"shape": ["T"], "dtype": "float32"},
        "ids": {"shape": ["T"], "dtype": "int8"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["T", "H"], "dtype": "float16"}},
    "reference": REFERENCE,
}
RANDOM = {name: {"type": "random"} for name in ("x", "proj", "rstd", "ids")}
LINES = [
    {"axes": {"T": 3}, "inputs": {**RANDOM, "eps": {"type": "scalar", "value": 0.5}}},
    {"workload": {"axes": {"T": 5}, "inputs": RANDOM, "tolerance": {"max_atol": 0.5, "max_error_cap": 2.0}}},
    {"axes": {"T": 7}, "inputs": RANDOM, "tolerance": {"atol": 0.25, "rtol": 0.1}},
]


@pytest.fixture
def write(tmp_path):
    def written(lines=LINES, where="workload.jsonl", **changed):
        path = tmp_path / "definitions" / "kind" / "twice.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**DEFINITION, **changed}))
        file = path.parent / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(map(json.dumps, lines)) + "\n")
        return str(path)

    return written


def workload(path, **fields):
    file = own_file.read(path)
    given = {"path": path, **file.fields, "dtype": None, "tf32": False, "pass": "fwd", "layout": "contiguous"}
    return workload_of(Choice("twice.json", given | fields))


@pytest.mark.parametrize("where", ["workload.jsonl", "../../workloads/kind/twice.jsonl"])
def test_axes_and_scalars_are_fields_and_lines_a_set_of_shapes(write, where):
    file = own_file.read(write(where=where))
    assert file.format == "flashinfer"
    assert dict(file.fields) == {"T": 3, "eps": 0.5, "line": 0}
    cases = [{"line": 0, "T": 3, "eps": 0.5}, {"line": 1, "T": 5, "eps": 1.0}, {"line": 2, "T": 7, "eps": 1.0}]
    assert file.shapes == {"lines": cases}
    assert file.implementations == ("reference",)


def test_an_axis_with_the_name_of_a_usual_field_has_another_one(write):
    axes = {"layout": {"type": "var"}, "twice": {"type": "expr", "expression": "2 * layout"}}
    spec = {"shape": ["twice"], "dtype": "float32"}
    path = write(axes=axes, inputs={"x": spec}, outputs={"y": spec}, lines=[{"axes": {"layout": 3}, "inputs": RANDOM}])
    assert own_file.read(path).shapes == {"lines": [{"line": 0, "task_layout": 3}]}
    assert workload(path, task_layout=5).draw("cpu", 0)[0][0].shape == (10,)


def test_inputs_have_the_shapes_and_types_of_the_definition(write):
    x, proj, rstd, ids, eps = workload(write(lines=[]), T=4).draw("cpu", 0)[0]
    assert [tuple(each.shape) for each in (x, proj, rstd, ids)] == [(4, 64), (4, 32), (4,), (4,)]
    kinds = [torch.float16, torch.float8_e4m3fn, torch.float32, torch.int8]
    assert ([each.dtype for each in (x, proj, rstd, ids)], eps) == (kinds, 1.0)
    assert rstd.min() > 0
    assert proj.float().abs().max() <= 1


def test_inputs_of_the_task_s_own_function_and_of_a_file(write):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    kinds = {
        **RANDOM,
        "x": {"type": "custom"},
        "ids": {"type": "safetensors", "path": "blob/a.safetensors", "tensor_key": "k"},
    }
    path = write(lines=[{"axes": {"T": 2}, "inputs": kinds}], custom_inputs_entrypoint="made")
    folder = own_file.Path(path).parents[2] / "blob"
    folder.mkdir()
    save_file({"k": torch.tensor([4, 5], dtype=torch.int8)}, folder / "a.safetensors")
    x, _, _, ids, _ = workload(path, eps=0.75).draw("cpu", 0)[0]
    assert torch.equal(x, torch.full((2, 64), 0.75))
    assert ids.tolist() == [4, 5]


def test_a_tensor_that_a_line_leaves_out_is_not_drawn_in_silence(write):
    inputs = {name: source for name, source in RANDOM.items() if name != "ids"}
    path = write(lines=[{"axes": {"T": 2}, "inputs": inputs}])
    with pytest.raises(NotImplementedError, match=r'gives no ids; .*, write "ids": \{"type": "random"\} among'):
        workload(path).draw("cpu", 0)


def test_a_line_that_is_not_there_says_which_are(write):
    with pytest.raises(IndexError, match=r"workload.line=3: its lines are 0 to 2"):
        workload(write(), line=3).draw("cpu", 0)


def judge(path, line):
    own = workload(path, **own_file.read(path).shapes["lines"][line])
    inputs = own.draw_inputs("cpu", 0)
    return own.expected_outputs(inputs), own.call(own.module.reference, inputs).run()


@pytest.mark.parametrize("names", [("main.py", "helper.py"), ("kernel.cu",)])
def test_a_solution_that_is_not_one_python_file_says_so(tmp_path, names):
    (tmp_path / "mine.json").write_text(json.dumps({"sources": [{"path": name, "content": ""} for name in names]}))
    with pytest.raises(ValueError, match=f"not one Python file: write {', '.join(names)} to files, and give"):
        formats.parse(tmp_path / "mine.json")


def test_the_words_of_a_line_mean_what_their_harness_means(write):
    path = write()
    summed, right = judge(path, 1)
    assert summed.tolerance == "0.5 + 0.01 |r|, 0.99 of the elements, none above 2 (as given)"
    wrong = right.clone()
    wrong[0, :3] += 1.5  # 3 of 320 elements
    assert summed.check(wrong).correct
    assert summed.check(wrong).err_over_tol == 1
    wrong[0, 0] += 3
    assert summed.check(wrong).reason.endswith(", which is above 2")
    wrong[0, 0] = torch.nan
    assert not summed.check(wrong).correct
    wrong[0, :4] = right[0, :4] + 1.5
    assert summed.check(wrong).reason.startswith("the output: 4 of 320 elements wrong")
    either, right = judge(path, 2)
    assert either.tolerance == "the larger of 0.25 and 0.1 |r| (as given)"
    assert either.check(right + 0.2).correct
    assert either.check(right * 1.09).correct
    assert not either.check(right * 1.09 + 0.2).correct  # a sum would allow it
    automatic, _ = judge(path, 0)
    assert automatic.tolerance.startswith("automatic")


def given(x, proj, rstd, ids, eps, result):
    result.copy_(2 * x + eps)


def by_keyword(x, proj, rstd, ids, eps, *, block=4, y=None):
    given(x, proj, rstd, ids, eps, y)


def with_an_option(x, proj, rstd, ids, eps, block=4):
    return block / 2 * x + eps


class Given:
    def __call__(self, x, proj, rstd, ids, eps, result):
        given(x, proj, rstd, ids, eps, result)


@pytest.mark.parametrize(
    "solution",
    [given, torch.no_grad()(given), by_keyword, with_an_option, Given(), lambda x, *others: 2 * x + others[-1]],
)
def test_a_solution_may_be_given_the_outputs(write, solution):
    own = workload(write())
    inputs = own.draw_inputs("cpu", 0)
    result = own.call(as_function(solution), inputs).run()
    assert result.dtype == torch.float16
    assert torch.equal(result, 2 * own.drawn.arguments[0][0] + 0.5)


@pytest.mark.parametrize("result", ["x + 1, 2 * x", '{"twice": 2 * x, "more": x + 1}'])
def test_several_outputs_are_matched_by_name_or_in_their_order(write, result):
    spec = {"shape": ["T"], "dtype": "float32"}
    reference = f"def run(x): return {result}"
    path = write(inputs={"x": spec}, outputs={"more": spec, "twice": spec}, reference=reference)
    own = workload(path)
    inputs = own.draw_inputs("cpu", 0)
    expected = own.expected_outputs(inputs)
    for solution in (lambda x: {"twice": x * 2, "more": x + 1}, lambda x: (x + 1, x * 2)):
        assert expected.check(own.call(as_function(solution), inputs).run()).correct
    assert expected.check((inputs[0] * 2, inputs[0] + 1)).reason.startswith('["more"]: ')


def test_an_error_of_the_reference_shows_its_line(write):
    own = workload(write(reference="def run(*inputs):\n    raise ValueError('here')\n"))
    with pytest.raises(ValueError, match="here") as caught:
        own.module.reference()
    import traceback

    shown = "".join(traceback.format_exception(caught.value))
    assert "raise ValueError('here')" in shown


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"T": {}}}, "or without a field: 'type'"),
        ({"reference": "def run(:"}, "line 1: invalid"),
        ({"lines": [{"axes": {"t": 3}, "inputs": {}}]}, "line 0 of its workload gives no T"),
    ],
)
def test_a_mistake_is_one_line(write, changed, message):
    with pytest.raises(BadInput, match=message):
        own_file.read(write(**changed))


def test_a_type_without_random_numbers_is_unsupported(write):
    path = write(inputs={"x": {"shape": ["T"], "dtype": "float4_e2m1"}}, lines=[])
    with pytest.raises(NotImplementedError, match="x: no random numbers of type float4_e2m1"):
        workload(path).draw("cpu", 0)

"""Workloads in one file: their inputs, calls, gradients and least work, as the worker uses them."""

from __future__ import annotations

import re

import pytest
import torch

from runner.kernels.unsupported import Unsupported
from runner.subject.operation import OwnOperation
from runner.subject.own_workload import class_of
from runner.subject.path import checked, first_calls
from runner.subject.tolerance import Judge
from runner.tasks import own_file
from runner.timing import nested
from runner.timing.arguments import Inputs
from runner.timing.call import Call, Outputs
from runner.timing.correctness import CheckResult
from runner.timing.kept_result import kept_result

LAYERED = """
import random
import numpy as np
import torch
def inputs(rows=4, cols=8):
    layer = torch.nn.Sequential(torch.nn.Linear(cols, cols), torch.nn.BatchNorm1d(cols))
    given = {"x": torch.randn(rows, cols), "n": 3, "mask": torch.arange(rows), "name": "a"}
    return layer, given, random.random(), np.random.rand()
def reference(layer, given, a, b): return layer(given["x"]) * given["n"]
"""
SCALED = """
import torch
def inputs(rows=3, cols=5): return torch.randn(rows, cols), torch.randn(cols)
def reference(x, w, eps=1e-6, form="a"): return x * w + eps
def plain(x, w): return x * w
def named(x, w, *, eps): return x * w + eps
"""
SETTINGS = {"dtype": None, "tf32": False, "pass_": "fwd", "layout": "contiguous"}


@pytest.fixture
def operation(tmp_path):
    def make(text, **changes):
        path = tmp_path / "mine.py"
        path.write_text(text)
        file = own_file.read(str(path))
        return OwnOperation(class_of(file)(**{"path": str(path), **SETTINGS, **changes}))

    return make


def test_inputs_are_those_of_the_seed_and_the_callers_generators_stay(operation):
    first, again, other = (operation(LAYERED) for _ in range(3))
    before = torch.get_rng_state()
    drawn, same = first.draw_inputs("cpu", 1), again.draw_inputs("cpu", 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, drawn, same))
    assert first.drawn.arguments[0][2:] == again.drawn.arguments[0][2:]  # of random and of numpy
    assert not torch.equal(drawn[-2], other.draw_inputs("cpu", 2)[-2])
    names = [parameter.numel() for parameter in first.drawn.arguments[0][0].parameters()]
    assert len(drawn) == len(names) + 3 + 2  # with BatchNorm's buffers, and the two tensors of the dict


def test_drawing_again_gives_the_same_numbers(operation):
    mine = operation(LAYERED)
    drawn = mine.draw_inputs("cpu", 0)
    before = [tensor.clone() for tensor in drawn]
    mine.call(mine.module.reference, drawn).run()  # BatchNorm changes its buffers
    assert not all(map(torch.equal, drawn, before))
    assert all(map(torch.equal, mine.draw_inputs("cpu", 0), before))


IN_A_LIST = LAYERED.replace("return layer,", "return [layer],").replace("layer(given", "layer[0](given")


@pytest.mark.parametrize("text", [LAYERED, IN_A_LIST])
def test_a_dtype_casts_floating_inputs_and_modules_alone(operation, text):
    mine = operation(text, dtype="float16")
    drawn = mine.draw_inputs("cpu", 0)
    assert {str(tensor.dtype) for tensor in drawn} == {"torch.float16", "torch.int64"}
    assert not any(tensor.requires_grad for tensor in drawn)
    given = operation(
        "def inputs(n=2, *, dtype): import torch; return torch.ones(n, dtype=dtype), torch.ones(n)\n"
        "def reference(x, y): return x\n",
        dtype="bfloat16",
    )
    assert [str(tensor.dtype) for tensor in given.draw_inputs("cpu", 0)] == ["torch.bfloat16", "torch.float32"]


TRAINING = """
import torch
def inputs(rows=4):
    model, teacher = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    return model, teacher, torch.optim.SGD(model.parameters(), lr=0.5), torch.randn(rows, 3)
def reference(model, teacher, optimizer, x):
    optimizer.zero_grad()
    loss = (model(x) - teacher(x)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
"""


def test_a_training_step_needs_no_more_than_its_optimizer_among_the_inputs(operation):
    mine = operation(TRAINING)
    inputs = mine.draw_inputs("cpu", 0)
    model, teacher, _, _ = mine.drawn.arguments[0]
    assert [model.weight.requires_grad, teacher.weight.requires_grad] == [True, False]
    judge = mine.expected_outputs(inputs)
    assert judge.check(mine.call(mine.module.reference, inputs).run(), [*model.parameters()]).correct


def test_an_implementation_gets_the_options_that_it_names(operation):
    mine = operation(SCALED, eps=0.5)
    inputs = mine.draw_inputs("cpu", 0)
    x, w = inputs
    assert torch.equal(mine.call(mine.module.named, inputs).run(), x * w + 0.5)
    with pytest.raises(Unsupported, match=r"it takes no eps, and workload\.eps=0\.5 is not the default"):
        mine.call(mine.module.plain, inputs)
    usual = operation(SCALED)
    assert torch.equal(usual.call(usual.module.plain, usual.draw_inputs("cpu", 0)).run(), x * w)


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
def test_gradients_are_those_of_every_input(operation, pass_):
    mine = operation(SCALED, pass_=pass_)
    x, w = inputs = mine.draw_inputs("cpu", 0)
    call = mine.call(mine.module.reference, inputs)
    dx, dw = call.run()[-2:]
    generator = torch.Generator().manual_seed(0)
    dy = torch.randint(-16, 17, x.shape, generator=generator).float() / 16
    assert torch.equal(dx, dy * w)
    torch.testing.assert_close(dw, (dy * x).sum(0))
    assert len(call.run()) == (2 if pass_ == "bwd" else 3)
    assert x.grad is None


def test_gradients_of_a_modules_parameters_are_there_and_its_grad_stays(operation):
    mine = operation(LAYERED, pass_="fwd_bwd")
    inputs = mine.draw_inputs("cpu", 0)
    output, *gradients = mine.call(mine.module.reference, inputs).run()
    assert not output.requires_grad
    layer = mine.drawn.arguments[0][0]
    assert len(gradients) == 1 + len([*layer.parameters()])
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_a_function_without_a_gradient_is_unsupported(operation):
    mine = operation(
        "import torch\ndef inputs(n=3): return torch.randn(n),\ndef reference(x): return x.round().detach()\n",
        pass_="bwd",
    )
    inputs = mine.draw_inputs("cpu", 0)
    with pytest.raises(Unsupported, match="no output depends on an input that has a gradient: time its forward alone"):
        mine.call(mine.module.reference, inputs).run()


def test_work_is_counted_by_torch_unless_the_file_counts_it(operation):
    product = "import torch\ndef inputs(n=8): return torch.randn(n, n), torch.randn(n, n)\n"
    product += "def reference(a, b): return a @ b\n"
    mine = operation(product)
    mine.draw_inputs("cpu", 0)
    assert mine.work().flops == 2 * 8**3
    counted = operation(product + "def flops(n): return 7 * n\ndef bytes(**fields): return fields['n']\n")
    counted.draw_inputs("cpu", 0)
    assert (counted.work().flops, counted.work().bytes_min) == (56, 8)
    unknown = operation(SCALED)
    unknown.draw_inputs("cpu", 0)
    assert unknown.work().flops == 0


PRODUCT = """
import torch
def inputs(m=5, k=7, n=11): return torch.randn(m, k), torch.randn(k, n)
def reference(a, b): return a @ b
"""
LAYER = """
import torch
def inputs(batch=6, dim=8): return torch.nn.Linear(dim, dim), torch.randn(batch, dim)
def reference(layer, x): return torch.nn.functional.gelu(layer(x))
"""
NAMED = """
import torch
def inputs(n=4): return {"a": torch.randn(n, n), "b": torch.randn(n, n)}
def reference(a, b): return a @ b
"""


@pytest.mark.parametrize(("pass_", "share"), [("fwd", 1), ("bwd", 2), ("fwd_bwd", 3)])
@pytest.mark.parametrize(("text", "forward"), [(PRODUCT, 2 * 5 * 7 * 11), (LAYER, 2 * 6 * 8 * 8), (NAMED, 2 * 4**3)])
def test_work_of_products_is_that_of_their_definition_in_each_pass(operation, text, forward, pass_, share):
    mine = operation(text, pass_=pass_)
    mine.draw_inputs("cpu", 0)
    assert mine.work().flops == share * forward


@pytest.mark.parametrize(
    ("pass_", "outside"),
    [("fwd", 5 * 11), ("bwd", 5 * 11 + 5 * 7 + 7 * 11), ("fwd_bwd", 2 * 5 * 11 + 5 * 7 + 7 * 11)],
)
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_least_traffic_has_inputs_outputs_and_the_gradients_of_the_outputs(operation, dtype, itemsize, pass_, outside):
    mine = operation(PRODUCT, pass_=pass_, dtype=dtype)
    mine.expected_outputs(mine.draw_inputs("cpu", 0))
    assert mine.work().bytes_min == itemsize * (5 * 7 + 7 * 11 + outside)


def test_a_layer_has_the_work_of_the_shipped_mlp(operation, make):
    fields = {"dim": 8, "batch": 6, "layers": 1, "steps": 1, "activation": "gelu"}
    of_x = 2 * 6 * 8 * 8  # the gradient of x, which the shipped one does not compute
    for pass_, more in (("fwd", 0), ("fwd_bwd", of_x)):
        shipped, _ = make("mlp", dtype="float32", pass_=pass_, zero_grad="every_step", **fields)
        mine = operation(LAYER, pass_=pass_)
        mine.draw_inputs("cpu", 0)
        assert mine.work().flops == shipped.flops() + more


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
def test_work_of_elementwise_operations_is_unknown(operation, pass_):
    mine = operation(SCALED, pass_=pass_)
    mine.draw_inputs("cpu", 0)
    assert mine.work().flops == 0


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "offset"])
@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
def test_upstream_gradients_are_laid_out_and_have_the_same_numbers(operation, pass_, layout):
    text = """
import torch
class Seen(torch.autograd.Function):
    strides = []
    def forward(context, x): return x * 2
    def backward(context, dy):
        Seen.strides.append((dy.stride(), dy.storage_offset()))
        return dy * 2
Seen.forward, Seen.backward = map(staticmethod, (Seen.forward, Seen.backward))
def inputs(rows=3, cols=5): return torch.randn(rows, cols)
def reference(x): return x * 2
def seen(x): return Seen.apply(x)
"""
    mine = operation(text, pass_=pass_, layout=layout)
    inputs = mine.draw_inputs("cpu", 0)
    result = mine.expected_outputs(inputs).check(mine.call(mine.module.seen, inputs).run())
    assert result.correct, result.reason
    strides = {"transposed": (1, 3), "strided": (10, 2)}.get(layout, (5, 1))
    assert mine.module.Seen.strides == [(strides, layout == "offset")]


@pytest.mark.parametrize("reduced", ["x.sin().sum()", "x.sin().mean((0, 1), keepdim=True)", "x.sin().sum(0)"])
def test_a_backward_pass_that_ignores_the_gradient_of_the_output_is_wrong(operation, reduced):
    text = f"""
import torch
class Ignores(torch.autograd.Function):
    def forward(context, x):
        context.save_for_backward(x)
        return reference(x)
    def backward(context, dy):
        (x,) = context.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(reference(leaf).sum(), leaf)[0]
Ignores.forward, Ignores.backward = map(staticmethod, (Ignores.forward, Ignores.backward))
def inputs(rows=3, cols=5): return torch.randn(rows, cols)
def reference(x): return {reduced}
def ignores(x): return Ignores.apply(x)
"""
    mine = operation(text, pass_="bwd")
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    assert expected.check(mine.call(mine.module.reference, inputs).run()).correct
    assert not expected.check(mine.call(mine.module.ignores, inputs).run()).correct


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
@pytest.mark.parametrize("shape", ["3, 5", ""])
def test_a_backward_pass_that_mixes_up_the_gradients_of_two_outputs_is_wrong(operation, shape, pass_):
    text = f"""
import torch
class Right(torch.autograd.Function):
    def forward(context, x): return 2 * x, 3 * x
    def backward(context, dy, dz): return 2 * dy + 3 * dz
class Mixed(Right):
    def backward(context, dy, dz): return 3 * dy + 2 * dz
Right.forward, Right.backward, Mixed.backward = map(staticmethod, (Right.forward, Right.backward, Mixed.backward))
def inputs(): return torch.randn({shape or "()"})
def reference(x): return 2 * x, 3 * x
def right(x): return Right.apply(x)
def mixed(x): return Mixed.apply(x)
"""
    mine = operation(text, pass_=pass_)
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    assert expected.check(mine.call(mine.module.right, inputs).run()).correct
    assert not expected.check(mine.call(mine.module.mixed, inputs).run()).correct


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
@pytest.mark.parametrize(
    ("returned", "right"),
    [
        ('{"z": 3 * x.sin(), "y": 2 * x}', True),
        ('{"y": 2 * x, "z": 3 * x.sin()}', True),
        ("[2 * x, 3 * x.sin()]", True),  # in the order of the reference
        ('{"y": 3 * x.sin(), "z": 2 * x}', False),
        ("[3 * x.sin(), 2 * x]", False),
    ],
)
def test_outputs_of_other_names_or_another_order_have_the_gradients_of_the_references(
    operation, pass_, returned, right
):
    text = f"""
import torch
def inputs(): return torch.randn(3, 5)
def reference(x): return {{"y": 2 * x, "z": 3 * x.sin()}}
def other(x): return {returned}
"""
    mine = operation(text, pass_=pass_)
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    assert expected.check(mine.call(mine.module.other, inputs).run()).correct is right


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "fwd_bwd"])
def test_inputs_by_name_have_gradients_too(operation, pass_):
    mine = operation(NAMED, pass_=pass_)
    inputs = mine.draw_inputs("cpu", 0)
    assert mine.expected_outputs(inputs).check(mine.call(mine.module.reference, inputs).run()).correct


def test_quick_judges_by_fewer_runs_of_the_reference(operation):
    mine = operation(PRODUCT)
    inputs = mine.draw_inputs("cpu", 0)
    whole, quick = (mine.expected_outputs(inputs, quick=quick).tolerance for quick in (False, True))
    assert (whole, quick) == ("automatic (8 draws)", "automatic (4 draws)")


AVERAGED = """
import torch
def inputs(rows=6, cols=5):
    return torch.randn(rows, cols, requires_grad=True), {"mean": torch.ones(cols), "step": torch.zeros(1)}
def reference(x, state):
    state["mean"].lerp_(x.detach().mean(0), 0.5)
    state["step"] = state["step"] + 1
    return x * state["mean"] * state["step"]
"""
NORMALIZED = """
import torch
def inputs(rows=6, cols=5):
    return torch.randn(rows, cols), torch.nn.Sequential(torch.nn.Linear(cols, cols), torch.nn.BatchNorm1d(cols))
def reference(x, layers): return layers(x)
"""


@pytest.mark.parametrize("text", [AVERAGED, NORMALIZED, LAYERED])
def test_a_backward_alone_finds_what_its_forward_has_changed_and_the_arguments_do_not(operation, text):
    mine = operation(text, pass_="bwd")
    inputs = mine.draw_inputs("cpu", 0)
    before = [tensor.clone() for tensor in inputs]
    expected = mine.expected_outputs(inputs)
    given = Inputs(mine.drawn.arguments)
    given.copy()
    calls = [first_calls(mine.call(mine.module.reference, inputs), given, "cpu", peak=False)[0] for _ in range(2)]
    for call in 2 * calls:  # in turn, as in paired rounds
        call, columns, reason = checked(call, expected, lambda: expected, given)
        assert (reason, columns["correct"]) == ("", True)
        call.restore()
    assert all(map(torch.equal, inputs, before))
    assert all(now is was for now, was in zip(nested.tensors(mine.drawn.arguments), inputs, strict=True))


COMPLEX = """
import torch
def inputs(rows=6, cols=8):
    return torch.randn(rows, cols, dtype=torch.complex64), torch.randn(cols, cols, dtype=torch.complex64)
def product(x, w): return x @ w
def spectrum(x, w): return (torch.fft.fft(x) * w.diagonal().conj()).abs().square()
def parts(x, w): return x.real @ w.imag, x.conj() + 1
def reference(x, w): return {reference}(x, w)
def conjugated(x, w): return reference(x.conj(), w)
"""


@pytest.mark.parametrize("pass_", ["bwd", "fwd_bwd"])
@pytest.mark.parametrize("reference", ["product", "spectrum", "parts"])
def test_complex_inputs_have_gradients(operation, reference, pass_):
    mine = operation(COMPLEX.replace("{reference}", reference), pass_=pass_)
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    right = mine.call(mine.module.reference, inputs).run()
    gradients = right[-2:]
    assert [(one.shape, one.dtype) for one in gradients] == [(one.shape, one.dtype) for one in inputs]
    assert expected.check(right).reason == ""
    wrong = mine.call(mine.module.conjugated, inputs).run()
    assert re.search(r", worst (the (real|imaginary) part )?at ", expected.check(wrong).reason)


SPARSE = """
import torch
def inputs(rows=40, cols=30, n=4):
    dense = torch.randn(rows, cols) * (torch.rand(rows, cols) < 0.2)
    return dense.{made}, torch.randn(cols, n)
def reference(a, b): return a.to_dense() @ b
def product(a, b): return a @ b
def last_row(a, b): return torch.cat([(a @ b)[:-1], torch.zeros(1, 4)])
def same(a, b): return a
"""


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("made", ["to_sparse()", "to_sparse_csr()", "to_sparse_csc()", "to_sparse_bsr((5, 5))"])
def test_inputs_may_be_sparse(operation, made):
    mine = operation(SPARSE.replace("{made}", made))
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    assert mine.work().bytes_min == 0  # unknown

    def judged(function):
        given = Inputs(mine.drawn.arguments)
        given.copy()
        call, _ = first_calls(mine.call(function, inputs), given, "cpu", peak=False)
        call, columns, reason = checked(call, expected, lambda: expected, given)
        return columns["correct"], reason or kept_result(call)

    assert judged(mine.module.product) == (True, "")
    assert judged(mine.module.last_row)[0] is False
    assert "shape" in judged(mine.module.same)[1]
    with_sparse_output = Judge(mine.module.same, mine.drawn.arguments[0])
    assert with_sparse_output.check(inputs[0]).unknown.startswith("the reference returns a sparse tensor")


JAGGED = """
import torch
def inputs(n=3, *, generator):
    x = torch.nested.nested_tensor([torch.randn(k, 4, generator=generator) for k in (n, 5)], layout=torch.jagged)
    return x, torch.randn(4, 4, generator=generator)
def reference(x, w): return torch.tanh(x @ w)
def by_values(x, w): return torch.nested.nested_tensor_from_jagged((x.values() @ w).tanh(), x.offsets())
def by_parts(x, w): return torch.nested.as_nested_tensor([(y @ w).tanh() for y in x.unbind()], layout=torch.jagged)
def other_weight(x, w): return torch.tanh(x @ w.T)
def other_lengths(x, w):
    return torch.nested.nested_tensor_from_jagged((x.values() @ w).tanh(), x.offsets() + torch.tensor([0, 1, 0]))
"""


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_nested_tensors_are_inputs_and_outputs(operation, pass_, dtype):
    mine = operation(JAGGED, pass_=pass_, dtype=dtype)
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)

    def judged(function):
        given = Inputs(mine.drawn.arguments)
        given.copy()
        call, _ = first_calls(mine.call(function, inputs), given, "cpu", peak=False)
        return checked(call, expected, lambda: expected, given)[2]

    assert not judged(mine.module.reference)
    assert not judged(mine.module.by_values)
    assert not judged(mine.module.by_parts)
    assert "elements wrong" in judged(mine.module.other_weight)
    assert bool(judged(mine.module.other_lengths)) is (pass_ != "bwd")  # the gradients are the same


def test_what_a_reference_writes_into_a_nested_tensor_is_compared():
    offsets = torch.tensor([0, 2, 5])
    state, x = (torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), offsets) for _ in range(2))
    judge = Judge(lambda state, x: state.mul_(0.5).add_(x), (state, x))
    given = Inputs((state, x))
    given.copy()

    def judged(function):
        outputs = function(state, x)
        given.note_changes()
        result = judge.check(outputs, given.now)
        given.restore()
        return result.correct

    assert not judged(lambda state, x: state * 0.5 + x)
    assert judged(lambda state, x: state.copy_(state * 0.5 + x))


def test_a_nested_tensor_of_another_layout_is_refused():
    strided = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)])
    with pytest.raises(Unsupported, match=r"give layout=torch\.jagged"):
        Judge(torch.relu, (strided,))


def test_outputs_that_change_after_a_call_has_returned_are_named():
    class Late(Outputs):
        def check(self, outputs, changed=None):
            reason = "" if outputs.all() else "2 of 2 elements wrong"
            outputs.fill_(1)  # as a thread might
            return CheckResult(reason=reason)

        def check_tensors(self, outputs, paths=()):
            return self.check(*outputs)

    given = Inputs(())
    _, columns, reason = checked(Call(lambda: torch.zeros(2)), Late(), Late, given)
    assert (columns["correct"], reason) == (False, said := "the outputs changed after the call had returned")
    call, _, reason = checked(Call(lambda: torch.ones(2)), Late(), Late, given)
    assert not reason
    assert (call.judge([torch.ones(2)]), call.judge([torch.zeros(2)])) == ("", said)  # among the timed calls


def test_fields_may_have_any_names(operation):
    text = "import torch\ndef inputs(arguments=3, place=5, file=2): return torch.ones(arguments, place, file)\n"
    mine = operation(text + "def reference(x, reference=2, call='a', options=1): return x * reference", arguments=4)
    inputs = mine.draw_inputs("cpu", 0)
    assert inputs[0].shape == (4, 5, 2)
    call = mine.call(mine.module.reference, inputs)
    assert mine.expected_outputs(inputs).check(call.run()).correct
    assert mine.work().bytes_min == 2 * 4 * 40


CHECKED = """
import torch
def inputs(n=4): return torch.arange(1.0, n + 1)
def reference(x): return {"twice": [2 * x], "count": (len(x), x + 1)}
def thrice(x): return {"twice": [3 * x], "count": (len(x), x + 1)}
def check(inputs, outputs):
    right, [twice], (count, more) = 2 * inputs[0], outputs["twice"], outputs["count"]
    {said}
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("return None if torch.equal(right, twice) and count == 4 else 'not twice'", "not twice"),
        ("assert torch.equal(right, twice) and count == 4", "an assertion of check() fails"),
        (
            "torch.testing.assert_close(right, twice)",
            "Tensor-likes are not close! Mismatched elements: 4 / 4 (100.0%) ",
        ),
    ],
)
def test_a_check_of_the_file_gets_what_a_call_returns_also_of_timed_calls(operation, said, reason):
    mine = operation(CHECKED.replace("{said}", said))
    inputs = mine.draw_inputs("cpu", 0)
    expected = mine.expected_outputs(inputs)
    right, wrong = (mine.call(function, inputs) for function in (mine.module.reference, mine.module.thrice))
    assert expected.check(wrong.run()).reason.startswith(reason)
    call, _, said = checked(right, expected, lambda: expected, Inputs(mine.drawn.arguments))
    assert said == ""
    for judge in (call.judge, call.judge_anew):
        assert judge(nested.returned_tensors(right.run())) == ""
        assert judge(nested.returned_tensors(wrong.run())).startswith(reason)


@pytest.mark.parametrize("said", ["torch.equal(right, twice)", "right == twice", "(True, '')"])
def test_a_check_that_returns_no_text_is_refused(operation, said):
    mine = operation(CHECKED.replace("{said}", f"return {said}"))
    inputs = mine.draw_inputs("cpu", 0)
    outputs = mine.call(mine.module.reference, inputs).run()
    with pytest.raises(
        TypeError, match=r"check\(\) returned a (bool|Tensor|tuple); return None if the outputs are right"
    ):
        mine.expected_outputs(inputs).check(outputs)


def test_a_function_of_other_arguments_is_told_what_it_gets(operation):
    mine = operation(
        "def inputs(n=3): return {'x': n, 'y': 2.5}\n"
        "def reference(x, y, eps=1): return x\n"
        "def of_one(x, *, eps): return x\n"
        "def wrapped(function): return lambda *args, **kwargs: function(3)\n"
    )
    inputs = mine.draw_inputs("cpu", 0)
    message = (
        r"^got an unexpected keyword argument 'y': of_one\(x, \*, eps\) is called with \(x=int, y=float, eps=int\)$"
    )
    with pytest.raises(TypeError, match=message):
        mine.call(mine.module.of_one, inputs)
    assert mine.call(mine.module.wrapped(lambda x: x), inputs).run() == 3  # a wrapper knows what it does
    listed = operation("def inputs(n=3): return [n, 2.5]\ndef reference(x, y, eps=1): return x\n")
    message = (
        r"reference\(x, y, eps=1\) is called with \(list, eps=int\); inputs\(\) returns a list, .*: return a tuple$"
    )
    with pytest.raises(TypeError, match=message):
        listed.expected_outputs(listed.draw_inputs("cpu", 0))


RECURRENT = """
import torch
def inputs(steps=5):
    layer = torch.nn.LAYER
    x = torch.randn(steps, 4, 2)
    return layer, x.transpose(0, 1) if layer.batch_first else x
def reference(layer, x): return layer(x)
"""


@pytest.mark.parametrize("layer", ["GRU(2, 3)", "RNN(2, 3, 2, batch_first=True)", "GRU(2, 3, bidirectional=True)"])
def test_the_memory_of_a_recurrent_layer_is_known_without_its_steps(operation, layer):
    few = operation(RECURRENT.replace("LAYER", layer))
    y, h = few.reference(*few.draw("cpu", 0)[0])
    assert few.needed("cpu")[1] == y.nbytes + h.nbytes
    steps = 10**9
    assert (
        operation(RECURRENT.replace("LAYER", layer), steps=steps).needed("cpu")[1] == y.nbytes // 5 * steps + h.nbytes
    )

"""mlp: what a call does to gradients and parameters, and a tolerance that rejects a wrong layer, form or clearing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

DTYPES = ["float64", "float32", "float16", "bfloat16"]
FIELDS = {"dim": 33, "layers": 3, "batch": 17, "steps": 3, "activation": "gelu", "lr": 0.1}
PASSES = ["fwd", "fwd_bwd", "train_step"]


def mlp(x, *params, activation):
    for w, b in zip(params[::2], params[1::2], strict=True):
        x = F.gelu(F.linear(x, w, b)) if activation == "gelu" else F.relu(F.linear(x, w, b))
    return x


def tanh_gelu(x, *params, activation):
    for w, b in zip(params[::2], params[1::2], strict=True):
        x = F.gelu(F.linear(x, w, b), approximate="tanh")
    return x


def no_bias(x, *params, activation):
    for w, b in zip(params[::2], params[1::2], strict=True):
        x = F.gelu(F.linear(x, w) + 0 * b)
    return x


def one_layer_less(x, *params, activation):
    return mlp(x, *params[:-2], activation=activation) + 0 * params[-1] + 0 * params[-2].sum()


def no_last_activation(x, *params, activation):
    return F.linear(mlp(x, *params[:-2], activation=activation), *params[-2:])


WRONG = [no_bias, one_layer_less, no_last_activation]


@pytest.fixture
def case(make):
    """A small MLP and its inputs; any field can be given."""

    def build(dtype="float32", pass_="fwd_bwd", zero_grad="every_step", **fields):
        return make("mlp", dtype=dtype, **(FIELDS | {"pass_": pass_, "zero_grad": zero_grad} | fields))

    return build


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_grad", ["every_step", "accumulate"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layers", [1, 16])
def test_a_right_forward_is_right_in_every_pass(case, error, dtype, zero_grad, activation, pass_, layers):
    workload, inputs = case(dtype, pass_, zero_grad, activation=activation, layers=layers)
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1


def test_a_right_update_in_float64_is_right_though_its_reference_is_rounded_too(case, error):
    workload, inputs = case("float64", "train_step", activation="relu", dim=512, batch=64, layers=1)
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("zero_grad", ["every_step", "accumulate"])
def test_adamw_is_that_of_torch_and_another_update_is_wrong(case, error, dtype, activation, zero_grad):
    fields = {"activation": activation, "lr": 0.003, "optimizer": "adamw"}
    workload, inputs = case(dtype, "train_step", zero_grad, **fields)
    call, expected = workload.call(mlp, inputs), workload.reference(*inputs)
    first = [param.clone() for param in call.run()]
    assert error(expected, first) < 1
    call.restore()
    assert all(map(torch.equal, first, call.run()))
    x, *params = (tensor.to(torch.float64, copy=True).requires_grad_() for tensor in inputs)
    optimizer = torch.optim.AdamW(params, lr=0.003)
    for _ in range(workload.steps):
        if zero_grad == "every_step":
            optimizer.zero_grad()
        mlp(x, *params, activation=activation).mean().backward()
        optimizer.step()
    of_params = expected[: len(params)]
    # A half of which may be the rounding to 16 bits that this lacks.
    assert error(of_params, [param.detach() for param in params]) < 0.6
    if dtype in ("float64", "float32"):
        sgd = dataclasses.replace(workload, optimizer="sgd")
        for wrong in (inputs[1:], sgd.call(mlp, inputs).run()[: len(params)]):
            assert error(of_params, wrong) > 1


@pytest.mark.parametrize("autocast", ["bfloat16", "float16"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("pass_", PASSES)
def test_autocast_computes_in_16_bits_and_keeps_parameters_in_32(case, error, autocast, activation, pass_):
    workload, inputs = case("float32", pass_, autocast=autocast, activation=activation, layers=5)
    expected, outputs = workload.reference(*inputs), workload.call(mlp, inputs).run()
    assert error(expected, outputs) < 1
    assert {y.dtype for y in outputs} == {torch.float32}
    plain = dataclasses.replace(workload, autocast="none")
    assert error(plain.reference(*inputs), outputs) > 2
    assert error(expected, workload.call(one_layer_less, inputs).run()) > 1
    assert (workload.work().dtype, plain.work().dtype) == (autocast, "float32")


def test_autocast_of_what_is_narrow_already_is_refused(case):
    with pytest.raises(ValueError, match="autocast: with dtype=bfloat16 nothing is left to cast"):
        case("bfloat16", "fwd", autocast="float16")


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_derivative_at_0_is_that_of_torch(case, error, activation, pass_):
    workload, inputs = case("float32", pass_, activation=activation, data="zeros")
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pass_", ["fwd", "fwd_bwd"])
def test_a_wrong_forward_is_wrong_in_every_dtype(case, error, wrong, dtype, pass_):
    workload, inputs = case(dtype, pass_)
    assert error(workload.reference(*inputs), workload.call(wrong, inputs).run()) > 1


@pytest.mark.parametrize("wrong", [*WRONG, tanh_gelu])
@pytest.mark.parametrize("pass_", PASSES)
def test_a_wrong_forward_is_wrong_in_float32(case, error, wrong, pass_):
    workload, inputs = case("float32", pass_)
    assert error(workload.reference(*inputs), workload.call(wrong, inputs).run()) > 2


@pytest.mark.parametrize("pass_", ["fwd_bwd", "train_step"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize(("asked", "done"), [("every_step", "accumulate"), ("accumulate", "every_step")])
def test_clearing_gradients_when_not_asked_to_is_wrong(case, error, pass_, activation, asked, done):
    workload, inputs = case("float32", pass_, asked, activation=activation, batch=64)
    other = dataclasses.replace(workload, zero_grad=done)
    assert error(workload.reference(*inputs), other.call(mlp, inputs).run()) > 1


@pytest.mark.parametrize("kind", [*DTYPES, "tf32", "autocast"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_outputs_1_percent_too_large_are_wrong(case, error, kind, activation):
    """In 16 bits no single one tells."""
    fields = {"tf32": {"tf32": True}, "autocast": {"autocast": "bfloat16"}}.get(kind, {"dtype": kind})
    workload, inputs = case(**fields, dim=64, layers=2, batch=256, activation=activation)
    expected, (y, *gradients) = workload.reference(*inputs), workload.call(mlp, inputs).run()
    assert error(expected, [y, *gradients]) < 1
    assert error(expected, [(y.double() * 1.01).to(y.dtype), *gradients]) > 1


def test_bfloat16_arithmetic_is_wrong_in_float32(case, error):
    workload, inputs = case("float32", "fwd")
    narrow = [tensor.bfloat16() for tensor in inputs]
    assert error(workload.reference(*inputs), [mlp(*narrow, activation="gelu")]) > 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("batch", [1, 4, 8, 64])
def test_gradients_of_0_and_halves_of_gradients_are_wrong(case, error, dtype, activation, batch):
    fields = {"activation": activation, "batch": batch, "dim": 64, "layers": 5, "lr": 1.0, "steps": 1}
    workload, inputs = case(dtype, "fwd_bwd", **fields)
    expected, (y, *gradients) = workload.reference(*inputs), workload.call(mlp, inputs).run()
    assert error(expected, [y, *gradients]) < 1
    for share in (0, 0.5):
        assert error(expected, [y, *(share * gradient for gradient in gradients)]) > 1
    workload, inputs = case(dtype, "train_step", **fields)
    expected, outputs = workload.reference(*inputs), workload.call(mlp, inputs).run()
    params, results = outputs[: len(inputs) - 1], outputs[len(inputs) - 1 :]
    assert error(expected, outputs) < 1
    for share in (0, 0.5):
        fallen_short = [start + share * (now - start) for start, now in zip(inputs[1:], params, strict=True)]
        assert error(expected, [*fallen_short, *results]) > 1


def half_of_a_gradient(x, w, *params, activation):
    return mlp(x, w / 2 + w.detach() / 2, *params, activation=activation)


def no_gradient(x, w, *params, activation):
    return mlp(x, w, params[0].detach(), *params[1:], activation=activation)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("wrong", [half_of_a_gradient, no_gradient])
def test_a_wrong_gradient_is_wrong_where_no_parameter_shows_it(case, error, dtype, optimizer, activation, wrong):
    """A small update is lost in bfloat16, and AdamW normalizes it."""
    fields = {"optimizer": optimizer, "activation": activation, "lr": 0.001, "steps": 1}
    workload, inputs = case(dtype, "train_step", **fields)
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1
    assert error(workload.reference(*inputs), workload.call(wrong, inputs).run()) > 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_in_a_deep_network_right_gradients_are_right_and_gradients_of_0_wrong(case, error, dtype, activation):
    workload, inputs = case(dtype, activation=activation, dim=64, layers=32, batch=64, steps=1)
    expected, (y, *gradients) = workload.reference(*inputs), workload.call(mlp, inputs).run()
    assert error(expected, [y, *gradients]) < 1
    assert error(expected, [y, *(0 * gradient for gradient in gradients)]) > 1


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("zero_grad", ["every_step", "accumulate"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_reference_is_what_autograd_makes_of_float64(case, pass_, zero_grad, activation):
    workload, inputs = case("float64", pass_, zero_grad, activation=activation)
    for want, got in zip(workload.reference(*inputs), workload.call(mlp, inputs).run(), strict=True):
        assert torch.allclose(want.value, got, rtol=1e-11, atol=1e-14), want.name


def test_reference_agrees_with_finite_differences(case):
    workload, inputs = case("float64", layers=2, steps=1)
    x, w1, *rest = inputs
    gradient = workload.reference(*inputs)[1]
    moved = w1.clone()
    moved[3, 5] += 1e-5
    after, before = (mlp(x, w, *rest, activation="gelu").mean() for w in (moved, w1))
    assert gradient.name == "grad of w1"
    assert float(gradient.value[3, 5]) == pytest.approx(float(after - before) / 1e-5, rel=1e-3)


def test_outputs_are_named_in_order(case):
    names = {pass_: [e.name for e in case(pass_=pass_, layers=2)[0].reference(*case(layers=2)[1])] for pass_ in PASSES}
    assert names == {
        "fwd": ["y"],
        "fwd_bwd": ["y", "grad of w1", "grad of b1", "grad of w2", "grad of b2"],
        "train_step": ["w1", "b1", "w2", "b2", "grad of w1", "grad of b1", "grad of w2", "grad of b2"],
    }


@pytest.mark.parametrize("zero_grad", ["every_step", "accumulate"])
@pytest.mark.parametrize("pass_", PASSES)
def test_a_call_repeats_itself_after_a_reset_and_leaves_its_inputs_alone(case, zero_grad, pass_):
    workload, inputs = case("float32", pass_, zero_grad)
    kept = [tensor.clone() for tensor in inputs]
    call = workload.call(mlp, inputs)
    first = [tensor.clone() for tensor in call.run()]
    call.restore()
    assert all(map(torch.equal, first, call.run()))
    assert all(map(torch.equal, kept, inputs))


def test_accumulated_gradients_start_from_zero_in_every_run_and_keep_their_buffers(case):
    workload, inputs = case(zero_grad="accumulate")
    call = workload.call(mlp, inputs)
    first = call.run()
    values = [tensor.clone() for tensor in first]
    again = call.run()
    assert all(map(torch.equal, values, again))
    assert [grad.data_ptr() for grad in first[1:]] == [grad.data_ptr() for grad in again[1:]]


def test_train_step_is_sgd(case):
    workload, inputs = case(pass_="train_step")
    params = [tensor.clone().requires_grad_() for tensor in inputs[1:]]
    sgd = torch.optim.SGD(params, lr=0.1)
    for _ in range(3):
        sgd.zero_grad()
        mlp(inputs[0], *params, activation="gelu").mean().backward()
        sgd.step()
    outputs = workload.call(mlp, inputs).run()
    for ours, theirs in zip(outputs, [*params, *(param.grad for param in params)], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("pass_", ["fwd_bwd", "train_step"])
def test_the_loss_is_printed_after_each_step_and_changes_nothing_else(case, error, capsys, pass_):
    workload, inputs = case("float64", pass_, print_loss=True)
    expected = workload.reference(*inputs)
    assert capsys.readouterr().out == ""  # the reference prints nothing
    assert error(expected, workload.call(mlp, inputs).run()) < 1
    printed = [float(line.removeprefix("loss ")) for line in capsys.readouterr().out.splitlines()]
    first = float(mlp(*inputs, activation="gelu").mean())
    assert printed[0] == pytest.approx(first, rel=1e-5)
    assert len(printed) == 3
    assert (printed == [printed[0]] * 3) is (pass_ == "fwd_bwd")  # training changes it


def test_the_loss_is_not_printed_unless_asked_for(case, capsys):
    workload, inputs = case()
    workload.call(mlp, inputs).run()
    assert capsys.readouterr().out == ""


def test_a_forward_alone_has_no_loss_to_print(case):
    with pytest.raises(ValueError, match="print_loss: pass=fwd has no loss to print"):
        case(pass_="fwd", print_loss=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_may_be_1(case, error, dtype):
    workload, inputs = case(dtype, dim=1, layers=1, batch=1, steps=1)
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1


def test_float16_gradients_that_underflow_are_right(case, error):
    workload, inputs = case("float16", dim=256, batch=256, layers=4, steps=1)
    assert error(workload.reference(*inputs), workload.call(mlp, inputs).run()) < 1


def test_flops_count_no_gradient_of_x(case):
    fields = {"dim": 10, "layers": 4, "batch": 3, "steps": 2}
    forward = 2 * 2 * 3 * 100 * 4
    assert case(pass_="fwd", **fields)[0].flops() == forward
    assert case(pass_="fwd_bwd", **fields)[0].flops() == 3 * forward - 2 * 2 * 3 * 100
    assert case(pass_="train_step", **fields)[0].flops() == 3 * forward - 2 * 2 * 3 * 100


@pytest.mark.parametrize(("pass_", "elements"), [("fwd", 3 * 2 + 12 + 6), ("fwd_bwd", 36), ("train_step", 30)])
def test_bytes_count_each_tensor_once_however_many_steps(case, pass_, elements):
    workload, _ = case("float16", pass_, dim=2, layers=2, batch=3)
    assert workload.bytes_min() == 2 * elements

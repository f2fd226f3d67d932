"""Times, comparisons and sweeps in the caller's process."""

from __future__ import annotations

import copy
import math
import re
import sys
import types
import weakref
from collections import OrderedDict, deque
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import count

import numpy
import pytest
import torch

from runner import Comparison, Timing, bench

X = torch.linspace(-3, 3, 60).reshape(6, 10)


def softmax(x):
    return torch.softmax(x, -1)


def test_one_function_has_its_time_and_prints_a_line(clock):
    timing = bench(clock.takes(30.0, softmax), X)
    assert isinstance(timing, Timing)
    assert timing.us == timing.low_us == timing.high_us == 30.0
    assert (timing.device, timing.verdict, timing.instrument) == ("cpu", "ok", "perf_counter")
    assert len(timing.samples_us) == timing.samples >= 5
    assert repr(timing) == f"timed: 30 us ±0.0 % (samples {timing.samples}) on cpu, ok"


def test_a_partial_gives_keywords_and_the_name(clock):
    asked = []

    def scaled(x, *, by):
        asked.append(by)
        return x * by

    assert bench(partial(scaled, by=2), X).name == "scaled"
    assert set(asked) == {2}


def test_a_comparison_says_who_is_faster_by_how_much(clock):
    result = bench({"mine": clock.takes(30.0, softmax), "torch": clock.takes(60.0, softmax)}, X, check=softmax)
    assert isinstance(result, Comparison)
    mine, torchs = result
    assert result["mine"] == mine
    assert (mine.word, mine.correct, mine.fastest) == ("faster", True, "yes")
    assert mine.speedup == pytest.approx(2)
    assert mine.speedup_low < mine.speedup < mine.speedup_high  # what one machine's processes differ by
    assert (torchs.word, torchs.speedup, torchs.fastest) == (None, 1.0, "no")
    assert result.baseline == "torch"


def test_equal_functions_are_the_same(clock):
    twice = {name: clock.takes(30.0, softmax) for name in ("a", "b", "c")}
    result = bench(twice, X, check=softmax, baseline="a")
    assert [one.word for one in result] == [None, "same", "same"]
    assert {one.fastest for one in result} == {"tied"}
    assert bench(twice, X).baseline == "a"


def test_the_table_is_that_of_the_command(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = bench({"mine": clock.takes(30.0, softmax), "torch": clock.takes(60.0, softmax)}, X, check=softmax)
    title, head, rule, heading, *_ = repr(result).splitlines()
    assert title == "bench on cpu"
    assert re.split(r" {2,}", head.strip()) == [
        *("implementation", "time", "±95 %", "speed-up", "vs base", "err/tol", "peak mem", "verdict"),
    ]
    assert set(rule.strip()) == {"─"}
    assert heading.strip() == "6x10 float32"
    assert "★ mine" in repr(result)
    assert "2.00x" in repr(result)
    assert "checked against the reference; tolerance: automatic (" in repr(result)
    assert "| **★ mine** | 30 us |" in result.markdown()
    assert "measure.benchmark" not in repr(result) + result.markdown()


def test_without_a_check_none_is_called_the_fastest(clock):
    result = bench({"a": clock.takes(30.0, softmax), "b": clock.takes(60.0, softmax)}, X)
    assert [(one.word, one.fastest, one.correct) for one in result] == [(None, "no", None), ("slower", "no", None)]
    assert "check=reference" in repr(result)


def test_a_wrong_function_is_not_timed(clock):
    result = bench({"wrong": lambda x: softmax(x) + 1e-4, "torch": softmax}, X, check=softmax)
    wrong = result["wrong"]
    assert wrong.correct is False
    assert math.isnan(wrong.timing.us)
    assert "the output: 60 of 60 elements wrong" in wrong.timing.reason
    assert wrong.timing.verdict == "wrong"
    assert wrong.speedup is None
    assert result["torch"].correct is True
    assert "60 of 60 elements wrong" in repr(result)


def test_a_single_function_can_be_checked_too(clock):
    assert bench(softmax, X, check=softmax).verdict == "ok"
    timing = bench(torch.exp, X, check=softmax)
    assert timing.verdict == "wrong"
    assert repr(timing).startswith("exp: not timed")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_tolerance_follows_from_the_reference_and_a_factor_widens_it(clock, dtype):
    """It accepts the rounding of a sum, and no error of a hundredth of what 1000 numbers differ by."""
    x = torch.randn(30, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    of_rows = partial(torch.sum, dim=-1)
    functions = {"right": of_rows, "wrong": lambda x: of_rows(x) * 1.05}
    result = bench(functions, x, check=of_rows)
    assert [one.correct for one in result] == [True, False]
    assert result["right"].timing.columns["tolerance"].startswith("automatic (")
    assert 0 <= result["right"].timing.columns["err_over_tol"] <= 1
    wide = bench(functions, x, check=of_rows, tolerance=2)["right"].timing.columns
    assert wide["tolerance"].endswith("2 times as wide")
    assert wide["err_over_tol"] == pytest.approx(result["right"].timing.columns["err_over_tol"] / 2)
    unknown = bench(functions, x, check=of_rows, tolerance=1e15)  # with which zeros are right too
    assert [one.correct for one in unknown] == [None, None]
    assert "zeros" in unknown["right"].timing.columns["check_note"]


def test_a_given_tolerance_is_used(clock):
    off = {"off": lambda x: softmax(x) + 1e-3}
    assert bench(off, X, check=softmax, atol=2e-3)["off"].correct
    assert not bench(off, X, check=softmax, atol=1e-4)["off"].correct


def test_the_reference_gets_copies_before_any_function(clock):
    seen = []

    def reference(x, index, more):
        seen.append((x.dtype, index.dtype, more["y"].dtype))
        return x.add_(1)[index]

    def function(x, index, more):
        assert seen
        return x.add_(1)[index]

    x, index = torch.linspace(0, 1, 4), torch.tensor([1, 2])
    was = x.clone()
    result = bench({"f": function}, x, index, {"y": torch.zeros(1, dtype=torch.float16)}, check=reference)
    assert set(seen) == {(torch.float32, torch.int64, torch.float16)}  # also where it computes in float64
    assert len(seen) > 2
    assert result["f"].correct
    assert torch.equal(x, was)


class Output(OrderedDict):
    """A mapping as model libraries have them: it cannot be made without its entries, and refuses ``update``."""

    def __init__(self, logits, cache):
        super().__init__(logits=logits, cache=cache)

    def update(self, *args, **kwargs):
        raise TypeError(f"You cannot use update on a {type(self).__name__}")


def test_what_a_call_replaces_in_a_mapping_of_any_class_is_put_back(clock):
    def grow(x, held):
        held["cache"] = torch.cat([held["cache"], x])
        return held["cache"].sum()

    held = OrderedDict.__new__(Output)
    OrderedDict.__init__(held, logits=torch.rand(3), cache=torch.rand(3))
    cache = held["cache"]
    bench(grow, torch.linspace(0, 1, 4), held)
    assert held["cache"] is cache


def test_complex_numbers_are_compared_by_their_parts(clock):
    result = bench({"right": torch.fft.fft, "wrong": lambda x: torch.fft.fft(x).conj()}, X, check=torch.fft.fft)
    assert [one.correct for one in result] == [True, False]


def test_integers_are_compared_exactly(clock):
    result = bench({"right": torch.argmax, "wrong": lambda x: torch.argmax(x) + 1}, X, check=torch.argmax)
    assert [one.correct for one in result] == [True, False]


def test_arrays_of_numpy_are_compared_as_tensors_are(clock):
    def array(x):
        return torch.softmax(x, -1).numpy()

    kept = array(X)
    functions = {
        "array": array,
        "tensor": softmax,
        "wrong": lambda x: array(x) * 1.01,
        "shape": lambda x: array(x)[1:],
        "kept": lambda x: kept.copy(),
    }
    for reference in (softmax, array):
        result = bench(functions, X, check=reference)
        assert [one.correct for one in result] == [True, True, False, False, False]
        assert "60 of 60 elements wrong" in result["wrong"].timing.reason
        assert "shape (5, 10) where the reference has (6, 10)" in result["shape"].timing.reason
        assert "cached result" in result["kept"].timing.reason
    nested = bench({"f": lambda x: {"y": [array(x) + 1]}}, X, check=lambda x: {"y": [array(x)]})
    assert nested["f"].timing.reason.startswith('["y"][0]: 60 of 60')


def test_functions_of_arrays_are_checked_in_float64_and_their_changes_undone(clock):
    x = X.numpy().copy()

    def normal(x):
        e = numpy.exp(x)
        return e / e.sum(-1, keepdims=True)

    def in_other_order(x):
        e = numpy.exp(x - x.max(-1, keepdims=True))
        return e / sum(e[:, i] for i in range(10))[:, None]

    result = bench({"other": in_other_order, "wrong": lambda x: 1.001 * normal(x)}, x, check=normal)
    assert [one.correct for one in result] == [True, False]
    means = {"array's": lambda x: (x + 9).mean(), "number": lambda x: float((x + 9).mean()), "wrong": lambda x: x.max()}
    assert [one.correct for one in bench(means, x, check=means["array's"])] == [True, True, False]
    doubled = bench({"f": lambda x: x.__imul__(2), "g": lambda x: x.__imul__(3)}, x, check=lambda x: x.__imul__(2))
    assert [one.correct for one in doubled] == [True, False]
    assert (x == X.numpy()).all()
    in_reverse, big_endian = x[::-1], x.astype(">f4")  # no tensor has such memory
    half = {"f": lambda x: numpy.divide(x, 2, out=x), "g": lambda x: numpy.divide(x, 3, out=x)}
    assert [one.correct for one in bench(half, in_reverse, check=half["f"])] == [True, False]
    bench(half, big_endian, check=half["f"])
    assert (x == X.numpy()).all()
    assert (big_endian == x).all()


def test_the_reference_runs_once_for_the_other_values_of_all_wrong_functions(clock):
    calls = []

    def counted(x):
        calls.append(x)
        return softmax(x)

    counts = []
    for names in ("a", "abc"):
        wrong = {name: lambda x: 1.01 * softmax(x) for name in names}
        assert [one.correct for one in bench(wrong, X, check=counted)] == [False] * len(names)
        counts.append(len(calls))
        calls.clear()
    assert counts[0] == counts[1] > 0


def test_a_function_that_returns_a_kept_result_is_wrong(clock):
    kept = softmax(X)
    result = bench({"kept": lambda x: kept.clone(), "torch": softmax}, X, check=softmax)
    assert result["kept"].correct is False
    assert "cached result" in result["kept"].timing.reason
    assert bench(lambda: kept.clone(), check=lambda: softmax(X.double())).verdict == "ok"  # it has no arguments


def test_an_input_that_is_prepared_once_is_named_and_stays_as_it_was(clock):
    known, weight = [], torch.randn(10, 4)
    was, version = weight.clone(), weight._version

    def packed(x, weight):
        known or known.append(weight.t().contiguous())
        return x @ known[0].t()

    result = bench({"packed": packed, "wrong": lambda x, w: x @ w + 1}, X, weight, check=torch.matmul)
    assert result["packed"].timing.reason.endswith("at its first call: compute from the inputs at each call")
    assert "first call" not in result["wrong"].timing.reason
    quantized = torch.randint(-127, 128, (10, 4), dtype=torch.int8)
    known.clear()
    packs = {"packed": lambda x, w: packed(x, w.float()), "torch": lambda x, w: x @ w.float()}
    result = bench(packs, X, quantized, check=packs["torch"])
    assert "at its first call" in result["packed"].timing.reason
    assert result["torch"].correct
    large = torch.linspace(-150, 150, 4096).view(16, 256)
    overflows = bench(
        {"overflows": lambda x: x.exp() / x.exp().sum(-1, keepdim=True), "torch": softmax}, large, check=softmax
    )
    assert "got nan" in overflows["overflows"].timing.reason
    assert "first call" not in overflows["overflows"].timing.reason
    starts = torch.arange(64.0)
    intervals = torch.stack([starts, starts + torch.rand(64)], 1)  # none is left if all numbers are reversed
    longer = bench(lambda x: 2 * (x[:, 1] - x[:, 0]).relu(), intervals, check=lambda x: (x[:, 1] - x[:, 0]).relu())
    assert "elements wrong" in longer.reason
    assert "first call" not in longer.reason
    assert torch.equal(weight, was)
    assert weight._version == version


def test_without_a_check_the_first_call_has_the_inputs_as_they_are(clock):
    seen = []
    bench(lambda x: seen.append(x.sum().item()), X)
    assert {*seen} == {X.sum().item()}


def test_functions_in_place_are_checked_by_what_they_change_and_share_their_inputs(clock):
    x = X.clone()

    def doubles(x):
        x.mul_(2)

    result = bench({"doubles": doubles, "adds": lambda x: x.add_(x), "not": lambda x: x.mul_(3)}, x, check=doubles)
    assert [one.correct for one in result] == [True, True, False]
    assert torch.equal(x, X)


def test_a_module_that_refuses_to_be_copied_is_named_with_a_way_out(clock):
    class Locked(torch.nn.Linear):  # as a module of fully_shard
        def __deepcopy__(self, _):
            raise AssertionError("no deepcopy here")

    model = Locked(10, 10)
    with pytest.raises(TypeError, match=r"^Locked cannot be copied: let the functions refer to it.*no deepcopy here"):
        bench(lambda m, x: m(x), model, X, check=lambda m, x: m(x))
    other = torch.nn.Linear(10, 10)
    other.load_state_dict(model.state_dict())
    assert [one.correct for one in bench({"f": lambda x: model(x)}, X, check=lambda x: other(x))] == [True]


def test_a_mode_that_a_function_sets_in_a_module_is_set_back(clock):
    def trains(layer, x):
        return layer.train()(x)

    layer = torch.nn.Sequential(torch.nn.BatchNorm1d(10)).eval()
    result = bench({"trains": trains, "calls": lambda layer, x: layer(x)}, layer, X, check=lambda layer, x: layer(x))
    assert [one.correct for one in result] == [False, True]
    assert not any(module.training for module in layer.modules())


@dataclass
class Running:
    total: torch.Tensor
    count: int = 1


@pytest.mark.parametrize("held", [{"total": torch.zeros(10), "count": 1}, Running(torch.zeros(10))])
def test_a_number_in_an_argument_is_compared_and_set_back(clock, held):
    def adds(by):
        def function(held, x):
            values = held if isinstance(held, dict) else vars(held)
            values["total"].add_(x[0])
            values["count"] += by
            return x * 2

        return function

    before = str(held)
    result = bench({"one": adds(1), "two": adds(2), "none": adds(0)}, held, X, check=adds(1))
    assert [one.correct for one in result] == [True, False, False]
    assert result["two"].timing.reason.endswith("got 3, want 2")
    assert re.fullmatch("it does not change held.*count.*, as the reference does", result["none"].timing.reason)
    assert str(held) == before


@pytest.mark.parametrize(("before", "after"), [(0, 0.5), (True, 2), (1.0, math.nan), (2**70, 2**70 + 1)])
def test_any_change_of_a_number_is_noticed(clock, before, after):
    def sets(held, x):
        held["step"] = after
        return x * 2

    result = bench({"sets": sets, "leaves": lambda held, x: x * 2}, {"step": before}, X, check=sets)
    assert [one.correct for one in result] == [True, False]
    assert result["leaves"].timing.reason == 'it does not change held["step"], as the reference does'


class Cache:
    """Keys of earlier calls, in an object as Hugging Face's caches are."""

    def __init__(self):
        self.keys = []

    def grown(self, key):
        self.keys[:] = [torch.cat([*self.keys, key])]
        return self.keys[0]


@pytest.mark.parametrize("filled", [False, True])
def test_an_object_is_compared_and_set_back(clock, filled):
    def attends(cache, x):
        return softmax(cache.grown(x) @ x.T)

    def stores_twice(cache, x):
        y = attends(cache, x)
        cache.grown(x)
        return y

    def stores_nothing(cache, x):
        return softmax(torch.cat([*cache.keys, x]) @ x.T)

    cache = Cache()
    cache.keys += [X.clone()] if filled else []
    functions = {"right": attends, "twice": stores_twice, "nothing": stores_nothing}
    result = bench(functions, cache, X, check=attends)
    assert [one.correct for one in result] == [True, False, False]
    assert result["nothing"].timing.reason == "it does not change cache.keys[0], as the reference does"
    assert len(cache.keys) == filled
    assert all(torch.equal(key, X) for key in cache.keys)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A layer with gradients, and an optimizer that has made a step."""
    layer = torch.nn.Linear(6, 3)
    for parameter in layer.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    optimizer.step()
    return layer, optimizer


@pytest.mark.parametrize("beside", [True, False])
def test_an_optimizer_steps_the_arguments_and_is_set_back(clock, beside):
    def step(*args):
        args[-1].step()

    def twice(*args):
        step(*args)
        step(*args)

    def forgets_its_state(*args):
        state = {name: value.clone() for each in args[-1].state.values() for name, value in each.items()}
        step(*args)
        for each in args[-1].state.values():
            each["step"].copy_(state["step"])

    layer, optimizer = trained()
    args = (layer, optimizer) if beside else (optimizer,)
    before = copy.deepcopy((layer.state_dict(), optimizer.state_dict()))
    functions = {"step": step, "twice": twice, "forgets": forgets_its_state, "nothing": lambda *args: None}
    result = bench(functions, *args, check=step)
    assert [one.correct for one in result] == [True, False, False, False]
    assert 'state[0]["step"]' in result["forgets"].timing.reason
    assert result["nothing"].timing.reason.endswith("and 4 more, as the reference does")
    assert str(before) == str((layer.state_dict(), optimizer.state_dict()))


def test_a_deque_is_compared_and_set_back(clock):
    def slides(window, x):
        window.append(x + 1)
        return sum(window)

    def slides_wrongly(window, x):
        y = slides(window, x)
        window[-1] = x + 2
        return y

    first = torch.zeros_like(X)
    window = deque([first, first.clone()], maxlen=2)
    result = bench({"right": slides, "wrong": slides_wrongly}, window, X, check=slides)
    assert [one.correct for one in result] == [True, False]
    assert result["wrong"].timing.reason.startswith("window[1]: 60 of 60 elements wrong")
    assert len(window) == 2
    assert window[0] is first


def test_a_generator_among_the_arguments_is_set_back(clock):
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    bench(lambda x, generator: x * torch.rand(6, 1, generator=generator), X, generator, check=lambda x, generator: x)
    assert torch.equal(generator.get_state(), before)


def test_gradients_of_arguments_are_compared_and_set_back(clock):
    def clip(parameters):
        return torch.nn.utils.clip_grad_norm_(parameters, 0.5)

    def norm(parameters):
        return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])

    parameters = [*trained()[0].parameters()]
    before = str([parameter.grad for parameter in parameters])
    result = bench({"clip": clip, "norm": norm}, parameters, check=clip)
    assert [one.correct for one in result] == [True, False]
    reason = "it does not change parameters[0].grad and parameters[1].grad, as the reference does"
    assert result["norm"].timing.reason == reason
    assert str([parameter.grad for parameter in parameters]) == before


def test_gradients_that_a_function_leaves_are_compared_if_the_reference_leaves_them(clock):
    def loss(layer, x):
        return layer(x).square().mean()

    def leaves(layer, x):
        loss(layer, x).backward()

    def leaves_more(layer, x):
        leaves(layer, x)
        return loss(layer, x)

    layer = torch.nn.Linear(10, 3)
    result = bench({"leaves": leaves, "nothing": lambda layer, x: None}, layer, X, check=leaves)
    assert [one.correct for one in result] == [True, False]
    assert bench({"more": leaves_more}, layer, X, check=loss)["more"].correct
    assert layer.weight.grad is None


@pytest.mark.filterwarnings("error")
def test_what_autograd_keeps_of_arguments_is_set_back(clock):
    def writes(layer, x, cache):
        cache[1:2] = layer(x)
        return cache.sum(0)

    def freezes(layer, x, cache):
        return writes(layer.requires_grad_(False), x, cache)

    layer, cache = torch.nn.Linear(10, 3), torch.zeros(4, 3)
    result = bench({"writes": writes, "freezes": freezes}, layer, X[:1], cache, check=writes)
    assert [one.correct for one in result] == [True, True]
    assert layer.weight.requires_grad
    assert (cache.is_leaf, cache.requires_grad, cache.any().item()) == (True, False, False)


def test_a_torchscript_module_is_an_argument(clock):
    layer = torch.nn.Linear(10, 3)
    result = bench({"calls": lambda layer, x: layer(x)}, torch.jit.trace(layer, X), X, check=lambda _, x: layer(x))
    assert result["calls"].correct


@dataclass
class Scaled:
    """A result whose class takes no other shapes, and sets a field itself."""

    y: torch.Tensor
    scale: InitVar[int]
    rows: int = field(init=False)

    def __post_init__(self, scale):
        self.rows, _ = self.y.shape


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Scaled(x * 2, 2),
        lambda x: (torch.arange(len(x)), x.sum().item()),  # the number changes with the inputs, the tensor does not
    ],
)
def test_a_result_with_more_than_tensors_is_right(clock, function):
    x = torch.randn(7, 10, generator=torch.Generator().manual_seed(3))
    assert bench(function, x, check=function).row.metrics["correct"] is True


def test_an_argument_whose_class_takes_no_copy_of_its_fields_is_right(clock):
    def function(scaled):
        return softmax(scaled.y) * scaled.rows

    assert bench(function, Scaled(X, 2), check=function).row.metrics["correct"] is True


def test_an_object_that_is_returned_is_compared(clock):
    def caches(by):
        def function(x):
            cache = Cache()
            return cache.grown(x * by) * 1, cache

        return function

    result = bench({"right": caches(2), "wrong": lambda x: (x * 2, caches(3)(x)[1])}, X, check=caches(2))
    assert [one.correct for one in result] == [True, False]
    assert result["wrong"].timing.reason.startswith("[1].keys[0]: ")


def test_backward_gives_the_gradients_and_leaves_none(clock):
    w = torch.ones(10, requires_grad=True)
    linear = torch.nn.Linear(10, 3)
    x = X.clone()
    result = bench({"a": lambda x: linear(x) * w.sum(), "b": lambda x: linear(x) * 10}, x, grad=True)
    assert len(result) == 2
    assert w.grad is linear.weight.grad is x.grad is None
    assert not x.requires_grad
    for check in (None, torch.argmax):
        with pytest.raises(ValueError, match="grad=True: no output depends on an input"):
            bench(torch.argmax, X, grad=True, check=check)


def test_backward_is_checked_too(clock):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return 2 * x + w

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy, 3 * dy

    def right(x, given):
        return {"y": 2 * x + given["w"]}

    functions = {
        "right": right,
        "wrong": lambda x, given: {"y": Wrong.apply(x, given["w"])},
        "forward": lambda x, given: {"y": 3 * x + given["w"]},
    }
    result = bench(functions, X, {"w": X.clone()}, check=right, grad=True)
    assert [one.correct for one in result] == [True, False, False]
    assert result["wrong"].timing.reason.startswith('grad of given["w"]: ')
    assert result["forward"].timing.reason.startswith('["y"]: ')


@pytest.mark.parametrize("unused", [0, 1, 2])
def test_no_gradient_is_one_of_zeros(clock, unused):
    args = [torch.randn(8, 6) for _ in range(3)]

    def product(*args):
        return torch.tanh(args[unused - 1] * args[unused - 2])

    functions = {
        "zeros": lambda *args: product(*args) + 0 * args[unused],
        "mask": lambda *args: product(*args) + 0.1 * (args[unused] - args[unused].detach()),
        "less": lambda *args: product(*(x.detach() if x is args[unused - 1] else x for x in args)),
    }
    result = bench(functions, *args, check=product, grad=True)
    assert [one.correct for one in result] == [True, False, False]
    name, other = f"grad of args[{unused}]", f"grad of args[{(unused - 1) % 3}]"
    assert result["mask"].timing.reason.startswith(
        f"{name}: the reference has none; call requires_grad_() on the other"
    )
    assert result["less"].timing.reason == f"{other}: there is none, and the reference has one"
    result = bench({"product": product}, *args, check=functions["zeros"], grad=True)
    assert result["product"].correct
    args[unused - 1].requires_grad_()
    args[unused - 2].requires_grad_()
    assert bench(functions["mask"], *args, check=product, grad=True).columns["correct"]


@pytest.mark.parametrize("check", [lambda model: model, lambda model: model.forward, lambda model: lambda x: model(x)])
def test_gradients_of_a_module_in_float32_are_checked(clock, check):
    class Detached(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.detach()) + 0 * x

    model, wrong = torch.nn.Linear(10, 10), Detached(10, 10)
    wrong.load_state_dict(model.state_dict())
    result = bench({"right": lambda x: model(x), "wrong": wrong}, X, check=check(model), grad=True)
    assert [one.correct for one in result] == [True, False]
    assert result["wrong"].timing.reason.startswith(("grad of x: ", "grad of input: "))


def test_a_model_of_token_ids_has_a_backward_too(clock):
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))
    functions = {"right": model, "wrong": lambda ids: 2 * model(ids)}
    result = bench(functions, torch.tensor([[1, 5], [8, 0]]), check=model, grad=True)
    assert [one.correct for one in result] == [True, False]
    assert result["wrong"].timing.reason.startswith("the output: ")


def test_the_reference_may_be_a_module_that_is_false_or_has_no_length(clock):
    class Empty(torch.nn.Module):
        def __len__(self):
            return 0

        def forward(self, x):
            return x * 2

    class Compiled(Empty):  # as torch.compile of a module has it
        def __len__(self):
            raise TypeError("Linear does not support len()")

    for reference in (Empty(), Compiled()):
        assert bench({"wrong": torch.neg, "right": lambda x: x + x}, X, check=reference)["wrong"].correct is False


def test_a_sweep_has_a_line_for_each_size(clock):
    sweep = bench(
        {"a": clock.takes(30.0, softmax), "torch": clock.takes(60.0, softmax)},
        make=lambda n: (torch.randn(n, 8),),
        sizes=[16, 64],
        bytes=lambda n: 64 * n,
    )
    assert [(one.name, one.size) for one in sweep] == [("a", 16), ("torch", 16), ("a", 64), ("torch", 64)]
    assert sweep["a", 64].speedup == pytest.approx(2)
    assert sweep["a", 16].timing.columns["bytes_min"] == 1024
    frame = sweep.frame()
    assert list(frame["workload.n"]) == [16, 16, 64, 64]
    assert list(frame["implementation"]) == ["a", "torch"] * 2
    assert list(frame["time_us"]) == [30.0, 60.0] * 2
    assert repr(sweep).count("size n=") >= 2
    with pytest.raises(KeyError, match=r"give one of \('a', 16\)"):
        sweep["a"]
    shapes = bench(softmax, make=torch.ones, sizes=[(2, 3), (4, 5)])
    assert isinstance(shapes, Comparison)
    assert shapes["softmax", (4, 5)] == shapes[1]


def test_a_size_that_raises_costs_its_own_row(clock):
    def picky(x):
        if len(x) == 3:
            raise RuntimeError("my shapes are odd")
        if len(x) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return softmax(x)

    def make(n):
        return torch.empty(2**50) if n == 5 else torch.randn(n, 8)

    sweep = bench({"picky": picky, "torch": softmax}, make=make, sizes=[2, 3, 4, 5, 6], check=softmax)
    verdicts = {(one.name, one.size): one.timing.verdict for one in sweep}
    picky_ones = [verdicts["picky", n] for n in (2, 3, 4, 5, 6)]
    assert picky_ones == ["ok", "error", "oom", "oom", "ok"]
    assert [verdicts["torch", n] for n in (2, 3, 4, 5, 6)] == ["ok", "ok", "ok", "oom", "ok"]
    assert sweep["picky", 3].timing.reason == "RuntimeError: my shapes are odd"
    assert sweep["picky", 6].speedup is not None
    assert "n=3 picky: error: RuntimeError: my shapes are odd (test_bench.py:" in repr(sweep)
    assert "cannot allocate 4096 TiB" in repr(sweep)
    assert list(sweep.frame()["status"])[2:4] == ["error", "ok"]


def test_a_function_that_raises_costs_its_own_row(clock):
    def reads_a_number(x):
        return float(x.detach().sum())

    functions = {"first": lambda x: x.nothing, "number": reads_a_number, "right": softmax}
    forward = bench(functions, X, check=softmax)
    assert [one.timing.verdict for one in forward] == ["error", "wrong", "ok"]
    assert forward["first"].timing.reason.startswith("AttributeError: 'Tensor' object has no attribute 'nothing'")
    backward = bench(functions, X, grad=True, baseline="first")
    assert [one.timing.verdict for one in backward] == ["error", "error", "ok"]
    assert "number: error: ValueError: grad=True: no output depends on an input" in repr(backward)


def test_the_device_is_asked_of_a_function_that_does_not_raise(clock, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = bench({"raises": lambda x: x.nothing, "right": softmax}, X)
    assert [one.timing.verdict for one in found] == ["error", "ok"]


def test_an_exception_of_a_reference_or_of_all_functions_is_the_callers_own(clock):
    error = RuntimeError("mine")

    def fails(x):
        raise error

    for options in ({"make": torch.ones, "sizes": [1, 2]}, {"make": fails, "sizes": [1, 2]}):
        with pytest.raises(RuntimeError) as caught:
            bench({"a": fails, "b": fails}, **options)
        assert caught.value is error
    for given in ({"a": fails}, {"a": fails, "b": fails}):
        with pytest.raises(RuntimeError) as caught:
            bench(given, X)
        assert caught.value is error
    with pytest.raises(RuntimeError) as caught:
        bench({"a": softmax, "b": torch.relu}, X, check=fails)
    assert caught.value is error


@pytest.mark.parametrize("at", [2, 4])
def test_an_interrupt_keeps_the_sizes_that_are_measured(clock, at):
    def make(n):
        if n == at:
            raise KeyboardInterrupt
        return torch.ones(n, 4)

    def sweep():
        return bench({"a": softmax, "b": torch.relu}, make=make, sizes=count(2))

    if at == 2:
        with pytest.raises(KeyboardInterrupt):
            sweep()
        return
    with pytest.warns(UserWarning, match="interrupted at size 4: bench returns the sizes before it"):
        found = sweep()
    assert [(one.name, one.size, one.timing.verdict) for one in found] == [
        (name, size, "ok") for size in (2, 3) for name in ("a", "b")
    ]


def test_a_fault_that_ends_the_gpu_leaves_later_sizes_alone(clock):
    def faults(x):
        if len(x) == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return softmax(x)

    sizes = iter([2, 3, 4, 5])
    sweep = bench(faults, make=lambda n: torch.ones(n, 4), sizes=sizes)
    assert [one.timing.verdict for one in sweep] == ["ok", "cuda_error", "skipped", "skipped"]
    assert sweep[3].timing.reason.startswith("not started: RuntimeError: CUDA error")


def test_what_a_size_that_raised_has_allocated_is_freed(clock):
    alive = []

    def fails(x):
        more = x + 1
        alive.append(weakref.ref(more))
        if len(x) == 2:
            raise RuntimeError("mine")
        assert alive[0]() is None
        return more

    assert [one.timing.verdict for one in bench(fails, make=torch.ones, sizes=[2, 3])] == ["error", "ok"]


def test_peak_memory_is_a_column(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = bench({"two": lambda x: (x + 1) * 2, "none": lambda x: 3}, torch.ones(2**16))
    two, none = (result[name].timing.peak_mem_bytes for name in ("two", "none"))
    assert 2**19 <= two < 2**19 + 2**12
    assert none == 0
    assert "512 KiB" in repr(result)
    with torch.autograd.profiler.profile():
        assert bench(torch.relu, X).peak_mem_bytes is None


def test_html_is_escaped(clock):
    names = {"<b>a</b>": softmax, "b & c": softmax}
    shown = bench(names, X, check=softmax)._repr_html_()
    assert "&lt;b&gt;a&lt;/b&gt;" in shown
    assert "<b>a" not in shown
    function = clock.takes(30.0, softmax)
    function.__name__ = "<i>"
    assert "&lt;i&gt;" in bench(function, X)._repr_html_()


def test_a_chart_needs_matplotlib_and_has_the_times(clock, monkeypatch):
    drawn = []
    axes = types.SimpleNamespace(
        **{name: lambda *_, **__: None for name in ("set_xscale", "set_yscale", "set_xlabel", "set_ylabel", "legend")},
        invert_yaxis=lambda: None,
        barh=lambda names, us, xerr: drawn.append((names, us, xerr)),
        errorbar=lambda sizes, us, errors, **more: drawn.append((sizes, us, more["label"])),
    )
    result = bench({"a": clock.takes(30.0, softmax), "b": clock.takes(60.0, softmax)}, X)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        result.plot()
    monkeypatch.setitem(sys.modules, "matplotlib", types.SimpleNamespace(pyplot=None))
    assert result.plot(axes) is axes
    ((names, us, errors),) = drawn
    assert (names, us) == (["a", "b"], pytest.approx([30.0, 60.0]))
    assert [*errors[0], *errors[1]] == pytest.approx([0.0] * 4, abs=1e-9)
    assert us == [one.paired_us for one in result]
    bench(clock.takes(30.0, softmax), make=lambda n: torch.randn(n, 8), sizes=[2, 4]).plot(axes)
    assert drawn[1] == ([2, 4], [30.0, 30.0], "timed")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bench(softmax, X, sizes=[1]), TypeError, "give both"),
        (lambda: bench(softmax, X, make=lambda n: X, sizes=[1]), TypeError, "no other arguments"),
        (lambda: bench({}, X), ValueError, "no function"),
        (lambda: bench({"a": 3}, X), TypeError, "'a': 3"),
        (lambda: bench(3, X), TypeError, "give a function"),
        (lambda: bench({"a": softmax}, X, baseline="b"), ValueError, "baseline='b': give one of a"),
        (lambda: bench(torch.softmax, X, dim=-1), TypeError, r"give bench\(functools.partial\(f, dim=-1\), ...\)"),
        (lambda: bench(torch.add, X, other=X), TypeError, r"functools.partial\(f, other=...\)"),
        (lambda: bench(softmax, X, chek=softmax), TypeError, "no argument chek; did you mean check"),
        (lambda: bench(softmax, X, max_s=0), ValueError, "max_s=0: give a number above 0"),
        (lambda: bench(softmax, X, target_pct=math.nan), ValueError, "target_pct=nan"),
        (lambda: bench(softmax, X, max_s="1"), ValueError, "max_s='1': give a number above 0"),
        (lambda: bench(softmax, X, tolerance=0), ValueError, "tolerance=0: give a number above 0"),
        (lambda: bench(softmax, X, atol="1e-3"), ValueError, "atol='1e-3': give a number of at least 0"),
        (lambda: bench(softmax, X, rtol=-1), ValueError, "rtol=-1: give a number of at least 0"),
        (lambda: bench(softmax, X, flops="many"), ValueError, "flops='many': give a number of at least 0"),
        (lambda: bench(softmax, X, bytes=lambda size: -4), ValueError, "bytes=-4: give a number of at least 0"),
        (lambda: bench(softmax, X, check=3), TypeError, "check=3: give a function"),
        (lambda: bench(softmax, make=3, sizes=[1]), TypeError, "make=3: give a function"),
        (lambda: bench(softmax, make=torch.ones, sizes=3), TypeError, "sizes=3: give a list"),
        (lambda: bench(softmax, X, device="gpu"), ValueError, "device='gpu': give cpu or cuda; torch sees "),
        (lambda: bench(softmax, X, device="meta"), ValueError, "device='meta': give cpu or cuda; torch sees "),
        (lambda: bench(softmax, X, device="cuda:64"), ValueError, "device='cuda:64': give cpu or cuda; torch sees "),
    ],
)
def test_a_mistake_is_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_slow_function_is_called_no_more_often_than_an_interval_needs(clock):
    calls = []
    timing = bench(clock.takes(400_000.0, calls.append), 1)
    assert timing.us == 400_000.0
    assert len(calls) == 2 + timing.samples  # the first call, and that for the peak memory; there is no warm-up


def test_the_settings_are_those_of_the_command():
    import yaml

    from runner.records.options import CONF
    from runner.subject.in_process import DEFAULTS

    given = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text())
    own = {name: getattr(DEFAULTS, name) for name in given if name not in ("name", "quick")}
    assert {name for name, value in own.items() if value != given[name]} == {"cupti_check", "measured_peak"}

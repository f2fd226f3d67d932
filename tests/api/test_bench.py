"""Times, comparisons and sweeps in the caller's process."""

from __future__ import annotations

import math
import re
import sys
import types
from functools import partial

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


def test_the_table_is_that_of_the_command(clock):
    result = bench({"mine": clock.takes(30.0, softmax), "torch": clock.takes(60.0, softmax)}, X, check=softmax)
    title, head, rule, heading, *_ = repr(result).splitlines()
    assert title == "bench on cpu"
    assert re.split(r" {2,}", head.strip()) == [
        *("implementation", "time", "±95 %", "speed-up", "vs base", "err/tol", "verdict"),
    ]
    assert set(rule.strip()) == {"─"}
    assert heading.strip() == "[6, 10] float32"
    assert "★ mine" in repr(result)
    assert "2.00x" in repr(result)
    assert "checked: |y - reference| <= " in repr(result)
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
def test_the_tolerance_follows_from_the_type_of_the_output(clock, dtype):
    """It accepts the rounding of a sum, and no error of a hundredth of what 1000 numbers differ by."""
    x = torch.randn(30, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    of_rows = partial(torch.sum, dim=-1)
    result = bench({"right": of_rows, "wrong": lambda x: of_rows(x) * 1.05}, x, check=of_rows)
    assert [one.correct for one in result] == [True, False]
    assert f"(from {str(dtype).removeprefix('torch.')})" in result["right"].timing.columns["tolerance"]


def test_a_given_tolerance_is_used(clock):
    off = {"off": lambda x: softmax(x) + 1e-3}
    assert bench(off, X, check=softmax, atol=2e-3)["off"].correct
    assert not bench(off, X, check=softmax, atol=1e-4)["off"].correct


def test_the_reference_gets_copies_in_float64_before_any_function(clock):
    seen = []

    def reference(x, index, more):
        seen.append((x.dtype, index.dtype, more["y"].dtype))
        return x.add_(1)[index]

    def function(x, index, more):
        assert seen
        return (x + 1)[index]

    x, index = torch.zeros(4), torch.tensor([1, 2])
    result = bench({"f": function}, x, index, {"y": torch.zeros(1, dtype=torch.float16)}, check=reference)
    assert seen == [(torch.float64, torch.int64, torch.float64)]
    assert result["f"].correct
    assert x.eq(0).all()


def test_complex_numbers_are_compared_by_their_parts(clock):
    result = bench({"right": torch.fft.fft, "wrong": lambda x: torch.fft.fft(x).conj()}, X, check=torch.fft.fft)
    assert [one.correct for one in result] == [True, False]
    assert "(from float32)" in result["right"].timing.columns["tolerance"]


def test_integers_are_compared_exactly(clock):
    result = bench({"right": torch.argmax, "wrong": lambda x: torch.argmax(x) + 1}, X, check=torch.argmax)
    assert [one.correct for one in result] == [True, False]


def test_a_function_that_returns_a_kept_result_is_wrong(clock):
    kept = softmax(X)
    result = bench({"kept": lambda x: kept.clone(), "torch": softmax}, X, check=softmax)
    assert result["kept"].correct is False
    assert "cached result" in result["kept"].timing.reason
    assert bench(lambda: kept.clone(), check=lambda: kept.double()).verdict == "ok"  # it has no arguments


def test_functions_in_place_are_checked_by_what_they_change_and_share_their_inputs(clock):
    x = X.clone()

    def doubles(x):
        x.mul_(2)

    result = bench({"doubles": doubles, "adds": lambda x: x.add_(x), "not": lambda x: x.mul_(3)}, x, check=doubles)
    assert [one.correct for one in result] == [True, True, False]
    assert torch.equal(x, X)


def test_backward_gives_the_gradients_and_leaves_none(clock):
    w = torch.ones(10, requires_grad=True)
    linear = torch.nn.Linear(10, 3)
    x = X.clone()
    result = bench({"a": lambda x: linear(x) * w.sum(), "b": lambda x: linear(x) * 10}, x, grad=True)
    assert len(result) == 2
    assert w.grad is linear.weight.grad is x.grad is None
    assert not x.requires_grad
    with pytest.raises(ValueError, match="grad=True: no output depends"):
        bench(torch.argmax, X, grad=True)


def test_backward_is_checked_too(clock):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            return 3 * dy

    result = bench({"right": lambda x: 2 * x, "wrong": Wrong.apply}, X, check=lambda x: 2 * x, grad=True)
    assert [one.correct for one in result] == [True, False]
    assert result["wrong"].timing.reason.startswith("output 1:")


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
    assert drawn == [(["a", "b"], [30.0, 60.0], [[0, 0], [0, 0]])]
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
        (lambda: bench(softmax, X, max_s=0), ValueError, "max_s=0: give a number above 0"),
        (lambda: bench(softmax, X, target_pct=math.nan), ValueError, "target_pct=nan"),
    ],
)
def test_a_mistake_is_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_slow_function_is_called_no_more_often_than_an_interval_needs(clock):
    calls = []
    timing = bench(clock.takes(400_000.0, calls.append), 1)
    assert timing.us == 400_000.0
    assert len(calls) == 1 + timing.samples  # the first call is no sample; there is no warm-up


def test_the_settings_are_those_of_the_command():
    import yaml

    from runner.experiment.schema import CONF
    from runner.timing import in_process

    given = yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text())
    own = {name: getattr(in_process.DEFAULTS, name) for name in given if name not in ("name", "quick")}
    assert {name for name, value in own.items() if value != given[name]} == {"cupti_check", "measured_peak"}

"""How long a grid will take: by the rows of earlier runs that are most like its cases, else by its sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner import config
from runner.device.rates import Rates
from runner.findings import cost
from runner.findings.cost import Costs
from runner.findings.duration import DEFINITION, FAR_SIZES, SAME, SAME_WORKLOAD, estimate
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store.journal import Journal

TWO_CORES = Rates({"float32": 1e11, "float64": 5e10, "bfloat16": 1e9}, 2.5e9)


@pytest.fixture(autouse=True)
def _rates(monkeypatch):
    """The same rates whatever CPU this is."""
    monkeypatch.setattr(cost, "rates", lambda device: TWO_CORES)


def case(impl="torch", workload="gelu", cols=8, samples=20, replica=0):
    measure = Choice("benchmark", {"samples": samples})
    return CaseRecord(
        Choice(workload, {"cols": cols}), Choice(impl, {}), (measure,), Settings("auto", 0), replica=replica
    )


@pytest.fixture
def took(tmp_path):
    """``took((case, device, seconds, check_s), ...)``: an earlier run under the folder that it returns."""

    def write(*rows):
        folder = tmp_path / "2026-11-21" / f"{len(list(tmp_path.glob('*/*')))}-gelu"
        folder.mkdir(parents=True)
        with Journal(folder) as journal:
            journal.begin()
            for one, device, seconds, *check_s in rows:
                metrics = {"wall_s": seconds, **dict(zip(["check_s"], check_s, strict=False))}
                journal.row(Row(case=one, status="ok", device=device, metrics=metrics))
        return str(tmp_path)

    return write


def test_the_same_case_is_nearer_than_its_size_and_that_than_its_workload(took):
    folder = took(
        (case(cols=8), "H200", 2.0),
        (case(cols=8, samples=900), "H200", 40.0),
        (case(cols=4096), "H200", 9.0),
        (case(workload="mlp"), "H200", 500.0),
    )
    asked = [
        case(cols=8),
        case(cols=8, replica=1),
        case(cols=8, samples=7),
        case(cols=16),
        case(workload="add"),
        case("cuda"),
    ]
    guess = estimate(asked, folder, ["H200"])
    assert [guess.seconds[one.key] for one in asked] == [2.0, 2.0, 21.0, 9.0, 24.5, None]
    assert str(guess).partition(" s")[2] == (
        ", a guess ("
        "2 from the same case, 2 from the same workload and implementation, "
        "1 from other workloads with the same implementation; 4 rows of 1 earlier run) and more, "
        "1 unknown: no earlier run"
    )
    assert str(estimate(asked[-1:], folder, ["H200"])) == "unknown: no earlier run"
    assert str(estimate(asked[:1], folder, ["H200"])).endswith(" s (from the same case; 4 rows of 1 earlier run)")


def test_a_function_of_a_file_says_nothing_of_another_workload(took):
    folder = took((replace(case(workload="add"), impl=Choice("file", {"path": "my_add.py:add"})), "H200", 500.0))
    other = replace(case(workload="mlp"), impl=Choice("file", {"path": "my_mlp.py:mlp"}))
    assert estimate([other], folder, ["H200"]).seconds[other.key] is None


def test_this_device_is_nearer_than_the_same_case_on_another(took):
    folder = took((case(cols=8), "cpu", 100.0), (case(cols=4096), "H200", 7.0))
    assert estimate([case()], folder, ["H200"]).seconds[case().key] == 7.0
    assert estimate([case()], folder, ["H100"]).seconds[case().key] == 100.0
    assert estimate([case()], folder).seconds[case().key] == 100.0


def test_the_reference_is_counted_once_for_each_problem(took):
    folder = took(
        (case("torch"), "cpu", 9.0, 7.5),  # with the reference; comparing takes 0.5 s
        (case("triton"), "cpu", 3.0, 0.5),
        (case("cuda"), "cpu", 2.5, 1.0),
    )
    planned = [case("triton"), case("cuda"), case("cuda", cols=16), case("triton", replica=1)]
    guess = estimate(planned, folder, ["cpu"])
    assert [guess.seconds[each.key] for each in planned] == [3.0 + 7.0, 2.5, 2.5 + 7.0, 3.0 + 7.0]
    assert str(guess).endswith("; 3 rows of 1 earlier run)")


def test_the_reference_of_a_single_row_is_its_whole_check(took):
    folder = took((case("torch"), "cpu", 9.0, 7.5))
    planned = [case("torch"), case("torch", workload="add")]
    guess = estimate(planned, folder, ["cpu"])
    assert [guess.seconds[each.key] for each in planned] == [9.0, 1.5]


def planned(*words):
    plan = config.plan([*words, "device=cpu", "log=none", "-m"])
    assert plan
    return plan.cases


def a_row(one, call_s, wall_s, check_s=0.0, measure_s=0.0):
    metrics = {"wall_us": 1e6 * call_s, "wall_s": wall_s, "check_s": check_s, "measure_s": measure_s}
    return Row(case=one, status="ok", device="cpu", metrics=metrics)


@pytest.fixture
def ran(tmp_path):
    """``ran(row, ...)``: an earlier run under the folder that it returns."""

    def write(*rows):
        folder = tmp_path / "2026-11-21" / "12-00-00-matmul"
        folder.mkdir(parents=True, exist_ok=True)
        with Journal(folder) as journal:
            journal.begin()
            for row in rows:
                journal.row(row)
        return str(tmp_path)

    return write


def test_without_rows_the_time_grows_with_the_operations_and_is_called_a_guess(tmp_path):
    cases = planned("workload=matmul", "workload.size=1024,2048,4096,8192", "impl=torch")
    guess = estimate(cases, str(tmp_path))
    small, *_, large, largest = (guess.seconds[case.key] for case in cases)
    assert small < 3
    assert 4 < largest / large < 8.5
    assert set(guess.bases.values()) == {DEFINITION}
    assert str(guess).endswith("a guess (from operations and bytes; no earlier run)")


def test_a_row_is_scaled_to_the_sizes_that_are_asked_for(ran):
    (seen,) = planned("workload=matmul", "workload.size=2048", "impl=torch")
    folder = ran(a_row(seen, call_s=2.0, wall_s=60.0, check_s=20.0, measure_s=30.0))
    same, near, far = planned("workload=matmul", "workload.size=2048,4096,16384", "impl=torch")
    guess = estimate([same, near, far], folder)
    assert [guess.bases[case.key] for case in (same, near, far)] == [SAME, SAME_WORKLOAD, DEFINITION]
    assert guess.seconds[same.key] == pytest.approx(60.0)
    assert 6 * 60 < guess.seconds[near.key] < 9 * 60
    assert guess.is_guess
    assert not estimate([same, near], folder).is_guess


def test_a_short_call_says_nothing_of_a_much_larger_size(ran):
    seen, asked = planned("workload=gelu", "workload.rows=16", "workload.cols=64,262144", "impl=torch")
    folder = ran(a_row(seen, call_s=1e-4, wall_s=0.6, check_s=0.1, measure_s=0.4))
    assert estimate([asked], folder).seconds == estimate([asked], "none").seconds
    larger, smaller = planned("workload=gelu", "workload.cols=4096,64", "impl=torch")
    folder = ran(a_row(larger, call_s=0.1, wall_s=9.0, measure_s=8.0))
    assert estimate([smaller], folder).bases == {smaller.key: FAR_SIZES}


def test_the_nearest_size_is_scaled(ran):
    cases = planned("workload=softmax", "workload.cols=256,1024,4096,8192", "impl=torch")
    folder = ran(
        *(a_row(one, call_s=s, wall_s=20 * s, measure_s=17 * s) for one, s in zip(cases, (9, 7, 1), strict=False))
    )
    guess = estimate(cases[-1:], folder)
    assert guess.seconds[cases[-1].key] == pytest.approx(2 * 20 * 1.0, rel=0.1)


def test_overhead_of_a_short_call_does_not_grow(ran):
    seen, asked = planned("workload=softmax", "workload.rows=1", "workload.cols=16,512", "impl=torch")
    folder = ran(a_row(seen, call_s=0.01, wall_s=0.3, measure_s=0.2))
    assert estimate([asked], folder).seconds[asked.key] < 1


@pytest.mark.parametrize("n", [0, 4])
def test_overhead_of_a_tiny_reference_does_not_grow(tmp_path, monkeypatch, ran, n):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text("def inputs(n=1000): return torch.randn(n)\ndef reference(x): return x * 2\n")
    seen, asked = planned("workload=tiny.py", f"workload.n={n},1000")
    folder = ran(a_row(seen, call_s=1e-6, wall_s=2.3, check_s=2.1, measure_s=0.1))
    assert estimate([asked], folder).total_s < 10


def test_a_time_limit_ends_what_is_measured(tmp_path):
    cases = planned("workload=matmul", "workload.size=16384", "impl=torch")
    limits = {"measure_limit_s": 1, "check_limit_s": 1}
    unlimited, limited = (estimate(cases, str(tmp_path), limits=each).total_s for each in ({}, limits))
    assert limited < unlimited / 2
    cases = planned("workload=matmul", "workload.size=16384", "impl=naive,torch")
    limits = {f"{phase}_limit_s": 10 for phase in ("build", "check", "measure")}
    guess = estimate(cases, str(tmp_path), limits=limits)
    assert [guess.seconds[case.key] for case in cases] == [10 + 10, 10]  # the reference, and a first call each
    assert guess.total_s < 60  # with the paired rounds


def test_products_of_16_bits_take_long_on_a_processor_without_them():
    narrow, wide = planned("workload=matmul", "workload.dtype=bfloat16,float32", "workload.size=1024")
    costs = Costs()
    assert costs.of(narrow, "cpu").call > 2.0 > costs.of(wide, "cpu").call


def test_elementary_operations_go_through_memory_and_products_of_naive_do_not():
    costs = Costs()
    naive, torch = planned("workload=matmul", "workload.size=1024", "impl=naive,torch")
    assert costs.of(naive, "cpu").call > 20 * costs.of(torch, "cpu").call
    naive, torch = planned("workload=mlp", "workload.dim=256", "workload.layers=2", "impl=naive,torch")
    assert costs.of(naive, "cpu").call == costs.of(torch, "cpu").call


OWN = """
import torch
def inputs(batch=2, n=256):
    rows = 4 * n
    return torch.randn(batch, rows, n), torch.ones((n,)), torch.nn.Linear(n, n)
def reference(x, w, layer): return layer(x) * w
"""


def test_a_file_of_ones_own_is_estimated_without_being_run(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    small, large = planned("workload=own.py", "workload.n=256,2048")
    guess = estimate([small, large], "none")
    assert 8 < guess.seconds[large.key] / guess.seconds[small.key] < 100
    row = a_row(small, call_s=0.1, wall_s=2.0, measure_s=1.5)
    row.metrics.update(flops=2**30, bytes_min=2**20)
    cubic = estimate([large], ran(row))
    assert cubic.seconds[large.key] == pytest.approx(8**3 * 2, rel=0.3)

"""What the cases of one problem share in a worker, and what they must not."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings
from runner.subject.path import KEEPS
from runner.worker import Worker
from runner.worker.job import Job
from runner.worker.problem import ProblemState
from runner.worker.process_state import read_state

BENCHMARK = {
    "cold_l2": True,
    "instrument": "auto",
    "captures": 10,
    "buffer_sets": 5,
    "cupti_check": True,
    "measured_peak": False,
    "warmup_s": 0.0,
}
BENCHMARK |= {"samples": 20, "max_s": 60.0, "paired_rounds": 10, "sustained_s": 0.0, "keep_samples": False}
BENCHMARK |= {"race": False, "target_pct": 0.5, "target_cpu_pct": 1e6}  # 20 samples, however busy the machine is
GELU = {
    "rows": 64,
    "cols": 64,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}

USER = """
import torch
seen = []
def right(x):
    seen.append(x.data_ptr())
    return torch.nn.functional.gelu(x, approximate="tanh")
def in_place(x): return x.copy_(right(x))
def sums(x):
    torch.sums.add(float(x.sum()))
    return right(x)
def narrow(x): return right(x)[:, :1]
def spoils_and_is_wrong(x): return x.mul_(2) + 1
calls = [0]
def spoils_later_and_is_wrong(x):
    calls[0] += 1
    return x.mul_(2) + 1 if calls[0] > 1 else right(x) + 1
torch.precisions = []
def precise(x):
    torch.precisions.append(torch.get_float32_matmul_precision())
    return right(x)
def imprecise(x):
    torch.set_float32_matmul_precision("high")
    return right(x) + 1
def spoils_and_fails(x):
    x.zero_()
    raise ValueError("after it has changed its input")
def runs_out_once(x):  # with the first values and then with the right ones
    torch.fed = getattr(torch, "fed", 0) + 1
    if torch.fed <= 2:
        raise MemoryError
    return right(x)
kept = {}
def keeps(x):
    key = x[0, 0].item()
    if key not in kept: kept[key] = right(x)
    return kept[key]
def keeps_and_copies(x):
    key = x.data_ptr(), x._version
    if key not in kept: kept[key] = right(x)
    return kept[key].clone()
out = torch.empty(64, 64)
def rewrites(x): return out.copy_(right(x))
def patches_when_told(x):
    if torch.patched: torch.nn.functional.relu = torch.relu
    return right(x)
turns = [0]
def wrong_when_timed(x):
    turns[0] += 1
    return right(x) if turns[0] < 6 else right(x) + 1
"""


@pytest.fixture
def user(tmp_path):
    """Cases of the functions above, and the module's own record of what they saw."""
    path = tmp_path / "user.py"
    path.write_text(USER)

    def case(name, cols=64, **changes):
        measure = Choice("benchmark", BENCHMARK | changes)
        fields = GELU | {"cols": cols}
        return CaseRecord(
            Choice("gelu", fields), Choice("file", {"path": f"{path}:{name}"}), (measure,), Settings("cpu", 0)
        )

    return case


def test_cases_of_one_point_are_compared_in_rounds(user):
    worker = Worker()
    rows = [worker.run(user(name))[0] for name in ("right", "in_place")]
    rounds = worker.compare()
    assert [row.status for row in rows] == ["ok", "ok"]
    assert set(rounds.batches_us) == {row.case.key for row in rows}
    assert all(len(batches) == 10 and min(batches) > 0 for batches in rounds.batches_us.values())
    assert set(rounds.instruments.values()) == {"perf_counter"}
    assert worker.compare().reason == "there is nothing to compare"


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_y_of_another_shape_is_wrong_in_every_pass(user, pass_):
    case = user("narrow")
    case = replace(case, workload=Choice("gelu", {**case.workload.fields, "pass": pass_}))
    row, spoiled = Worker().run(case)
    assert (row.status, row.reason) == ("wrong", "y: shape (64, 1) where the reference has (64, 64)")
    assert (row.metrics["verdict"], row.detail, spoiled) == ("wrong", "", False)


def test_a_new_point_forgets_the_old_one(user):
    worker = Worker()
    for name, cols in (("right", 64), ("in_place", 64), ("right", 32)):
        worker.run(user(name, cols))
    assert worker.compare().reason == "there is nothing to compare"


def test_inputs_are_the_same_tensors_for_every_case_of_a_problem(user):
    case = user("right")
    problem = ProblemState(case)
    assert problem.inputs()[0] is problem.inputs()[0]
    assert problem.expected() is problem.expected()


def test_one_that_changes_its_inputs_harms_nobody_after_it(user):
    worker = Worker()
    first = worker.run(user("in_place"))[0]
    assert first.metrics["mutates_inputs"] is True
    assert worker.run(user("right"))[0].status == "ok"


def test_one_that_changes_its_inputs_and_fails_harms_nobody_after_it(user):
    worker = Worker()
    assert worker.run(user("right"))[0].status == "ok"
    assert worker.run(user("spoils_and_fails"))[0].status == "error"
    assert worker.run(user("in_place"))[0].status == "ok"
    assert len(worker.compare().batches_us) == 2


@pytest.mark.parametrize("name", ["spoils_and_is_wrong", "spoils_later_and_is_wrong"])
def test_one_that_changes_its_inputs_and_is_wrong_harms_nobody_after_it(user, name):
    worker = Worker()
    assert [worker.run(user(one))[0].status for one in (name, "right", name, "in_place")] == [
        "wrong",
        "ok",
        "wrong",
        "ok",
    ]
    assert len(worker.compare().batches_us) == 2


def test_the_rounds_are_of_the_precision_that_the_workload_asks_for_whatever_a_case_has_set(user):
    worker = Worker()
    for name in ("right", "precise", "imprecise"):
        worker.run(user(name))
    torch.precisions.clear()
    assert len(worker.compare().batches_us) == 2
    assert set(torch.precisions) == {"highest"}


@pytest.mark.parametrize("order", [("in_place", "sums"), ("sums", "in_place")])
def test_one_that_changes_its_inputs_is_compared_on_the_same_inputs_as_the_others(user, order):
    worker, torch.sums = Worker(), set()
    try:
        assert [worker.run(user(name))[0].status for name in order] == ["ok", "ok"]
        torch.sums.clear()
        assert len(worker.compare().batches_us) == 2
        assert len(torch.sums) == 1
    finally:
        del torch.sums


def test_what_was_raised_is_a_file_beside_the_others_of_the_case(user, tmp_path):
    row, _ = Worker(files=tmp_path / "files").run(broken := user("spoils_and_fails"))
    (file,) = row.files
    assert file == str(tmp_path / "files" / broken.key / "error.txt")
    assert (tmp_path / "files" / broken.key / "error.txt").read_text() == row.detail
    assert "user.py" in row.detail
    (tmp_path / "in the way").write_text("")
    assert Worker(files=tmp_path / "in the way").run(broken)[0].files == ()


def test_out_of_memory_is_tried_once_more_with_nothing_held(user):
    worker = Worker()
    worker.run(user("right"))
    assert worker.run(user("runs_out_once"))[0].status == "ok"
    del torch.fed
    assert worker.compare().reason == "no paired rounds: memory is short"


def test_out_of_memory_with_nothing_held_is_a_row(user, monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(ProblemState, "inputs", fails)
    assert Worker().run(user("right"))[0].status == "oom"


def test_outputs_of_the_timed_calls_are_checked_too(user):
    row = Worker().run(user("wrong_when_timed"))[0]
    assert row.status == "wrong"
    assert row.reason.startswith("in the timed calls: y: 4096 of 4096 elements wrong")
    assert row.metrics["correct"] is False


def test_a_result_that_is_only_kept_is_wrong_and_one_that_is_written_anew_is_not(user):
    worker = Worker()
    rows = {name: worker.run(user(name))[0] for name in ("keeps", "rewrites", "in_place")}
    assert {name: row.status for name, row in rows.items()} == {"keeps": "wrong", "rewrites": "ok", "in_place": "ok"}
    assert rows["keeps"].reason.startswith("in the timed calls: it returns a cached result: the outputs ")


def test_copies_of_a_result_that_is_kept_are_wrong(user):
    row, _ = Worker().run(user("keeps_and_copies"))
    assert row.status == "wrong"
    assert row.reason.endswith(KEEPS)


def test_no_rounds_on_request(user):
    worker = Worker()
    for name in ("right", "in_place"):
        worker.run(user(name, paired_rounds=0))
    assert worker.compare().reason == "no paired rounds: turned off, or calls are too slow"


def test_what_torch_has_compiled_for_a_point_is_kept_until_its_comparison(user, monkeypatch):
    resets = []
    worker = Worker()
    compiled = {"of": "torch", "mode": "default", "dynamic": False, "fullgraph": False, "cold": False}
    cases = [
        user("right"),
        *(
            CaseRecord(
                user("right").workload,
                Choice("compiled", compiled | {"of": of}),
                user("right").measures,
                Settings("cpu", 0),
            )
            for of in ("torch", "naive")
        ),
    ]
    for case in cases:
        assert worker.run(case)[0].status == "ok"
    reset = torch._dynamo.reset
    monkeypatch.setattr(torch._dynamo, "reset", lambda: (resets.append(1), reset()))
    counters = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    rounds = worker.compare()
    assert len(rounds.batches_us) == 3
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counters
    assert resets == [1]


def test_memory_given_back_is_left_to_the_driver_for_as_long_as_it_takes_to_wipe_it(monkeypatch):
    from runner import worker

    held, slept = iter([3 * 10**10, 0]), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: next(held))
    monkeypatch.setattr(worker.time, "sleep", slept.append)
    worker.tidy()
    assert slept == [pytest.approx(0.1)]


def test_what_an_implementation_says_it_chose_is_in_its_row(monkeypatch):
    case = CaseRecord(Choice("gelu", GELU), Choice("naive", {}), (Choice("benchmark", BENCHMARK),), Settings("cpu", 0))
    assert "config" not in Worker().run(case)[0].metrics
    monkeypatch.setattr(import_module("runner.kernels.gelu.naive"), "chosen", lambda: "tiles of 3", raising=False)
    assert Worker().run(case)[0].metrics["config"] == "tiles of 3"


@pytest.mark.parametrize("impl", ["naive", "torch"])
def test_outputs_of_another_type_than_the_inputs_are_checked_and_timed(impl):
    fields = {
        "size": 64,
        "m": 64,
        "n": 48,
        "k": 96,
        "dtype": "float8_e4m3fn",
        "tf32": False,
        "data": "normal",
        "layout": "contiguous",
    }
    row, _ = Worker().run(
        CaseRecord(Choice("matmul", fields), Choice(impl, {}), (Choice("benchmark", BENCHMARK),), Settings("cpu", 0))
    )
    if impl == "torch" and row.status == "unsupported":
        pytest.skip(row.reason)
    assert (row.status, row.reason) == ("ok", "")
    assert row.metrics["bytes_min"] == 64 * 96 + 96 * 48 + 2 * 64 * 48


LEFT_ON = {
    "autocast": lambda: torch.autocast("cpu"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "inference": torch.inference_mode,
    "function mode": torch.overrides.BaseTorchFunctionMode,
    "dispatch mode": TorchDispatchMode,
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "bitwise_repeatable": lambda: torch.backends.cudnn.flags(enabled=True, deterministic=True),
}


@pytest.mark.parametrize("name", LEFT_ON)
def test_what_a_case_leaves_on_is_seen(name):
    with torch.backends.cudnn.flags(enabled=True):  # it changes all that it is not told
        before = read_state()
        with LEFT_ON[name]():
            assert read_state().changes_since(before)
        assert not read_state().changes_since(before)


@pytest.mark.parametrize("allowed", [False, True])
def test_products_and_convolutions_of_each_case_may_use_tf32_as_its_field_says(allowed):
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    case = CaseRecord(Choice("gelu", GELU | {"tf32": allowed}), Choice("torch", {}), (), Settings("cpu", 0))
    try:
        torch.backends.cudnn.allow_tf32 = not allowed
        if hasattr(torch.backends.cudnn, "conv"):  # since torch 2.9; the two then differ
            torch.backends.cudnn.conv.fp32_precision = "ieee"
        ProblemState(case).inputs()
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def test_a_call_that_changes_torch_in_the_paired_rounds_ends_the_process(user, monkeypatch):
    functional = torch.nn.functional
    monkeypatch.setattr(functional, "relu", functional.relu)  # it is put back after the test
    monkeypatch.setattr(torch, "patched", False, raising=False)
    worker, case = Worker(), user("patches_when_told")
    assert [worker.run(one)[1] for one in (case, user("right"))] == [False, False]
    torch.patched = True
    assert worker.compare().reason == "no paired rounds: a call has changed torch.nn.functional.relu"
    assert worker.leftovers(case) == "an earlier case has changed torch.nn.functional.relu"


@pytest.mark.parametrize(("measured", "word"), [("impossible", "impossible"), ("launch_bound", "fallback")])
def test_a_time_that_cannot_be_true_is_no_mere_fallback(user, measured, word):
    case = user("right")
    job = Job(case, ProblemState(case), lambda phase: None)
    job.fallback, job.metrics = "it ran eagerly", {"verdict": measured, "verdict_reason": "why"}
    assert job.row(None).metrics["verdict"] == word

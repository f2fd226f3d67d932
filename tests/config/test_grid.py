"""Resolved configs become a plan."""

from __future__ import annotations

import pytest
import yaml

from runner.config import grid
from runner.records.bad_input import BadInput
from runner.records.options import CONF


def config(impl="torch", cols=8, **top):
    return {
        "workload": {"name": "gelu", "rows": 4, "cols": cols, "form": "tanh", "pass": "fwd"}
        | {"dtype": "float32", "tf32": False, "data": "normal", "layout": "contiguous", "axes": {"cols": [1]}},
        "impl": {"name": impl},
        "measure": {"benchmark": yaml.safe_load((CONF / "measure" / "benchmark.yaml").read_text()) | {"warmup_s": 0}},
        "launcher": {"name": "local"},
        "log": {},
        "name": None,
        "question": None,
        "device": "auto",
        "seed": 0,
        "baseline": None,
        "time_wrong": False,
        "debug": None,
        "quick": False,
        "deterministic_algorithms": False,
        "replicas": 1,
        "output_dir": "outputs",
        "axes": {},
        "default_axes": True,
        "columns": [],
        "resume": {"of": None, "retry": ["oom"], "ignore": [], "trust": False},
    } | top


def test_cases_of_one_point_stand_together_in_the_order_of_the_grid():
    plan = grid.plan_grid([config("naive", 8), config("naive", 16), config("torch", 8), config("torch", 16)])
    order = [(case.workload.fields["cols"], case.impl.name) for case in plan.cases]
    assert order == [(8, "naive"), (8, "torch"), (16, "naive"), (16, "torch")]


def test_replicas_run_one_after_the_other_each_over_the_whole_grid():
    plan = grid.plan_grid([config("naive", replicas=2), config("torch", replicas=2)])
    assert [(case.replica, case.impl.name) for case in plan.cases] == [
        (0, "naive"),
        (0, "torch"),
        (1, "naive"),
        (1, "torch"),
    ]
    assert len({case.key for case in plan.cases}) == 4
    assert len({case.problem for case in plan.cases}) == 1


@pytest.mark.parametrize(("field", "values"), [("replicas", (1, 5)), ("baseline", ("torch", "naive"))])
def test_what_a_run_has_one_of_cannot_be_swept(field, values):
    """Otherwise the run would silently take the first of two values."""
    configs = [config(impl, **{field: value}) for value in values for impl in ("naive", "torch")]
    with pytest.raises(BadInput, match=f"{field}={values[0]},{values[1]}: the whole run has one; give one"):
        grid.plan_grid(configs)


def test_columns_to_show_are_those_of_a_row():
    shown = config()
    shown["columns"] = ["gpu_us", "speedup"]
    assert grid.plan_grid([shown]).columns == ("gpu_us", "speedup")
    shown["columns"] = ["gpu_ms"]
    with pytest.raises(BadInput, match=r"columns: no such column 'gpu_ms'; did you mean gpu_us or .*lists them all"):
        grid.plan_grid([shown])


def test_the_same_case_twice_runs_once():
    assert len(grid.plan_grid([config(), config()]).cases) == 1


def test_a_key_is_the_same_whenever_the_case_is_and_differs_when_it_differs():
    (one,), (same,), (other,) = (grid.plan_grid([c]).cases for c in (config(), config(), config(seed=1)))
    assert one.key == same.key != other.key


def test_the_default_name_is_that_of_the_workloads():
    assert grid.plan_grid([config()]).name == "gelu"


def test_whole_numbers_are_taken_for_floats():
    (case,) = grid.plan_grid([config()]).cases
    assert type(case.measures[0].fields["warmup_s"]) is float


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ({"seed": -1}, "seed: -1 is not allowed; give a whole number of at least 0"),
        ({"seed": True}, "seed: true is not allowed"),
        ({"device": "gpu"}, "device: 'gpu' is not allowed; did you mean cuda\\? One of: auto, cpu, cuda"),
        ({"debug": "asan"}, "debug: 'asan' is not allowed; one of: anomaly, interpret, launch_blocking, "),
        (
            {"debug": "interpret", "device": "cuda"},
            "debug: interpret runs Triton and Numba kernels on the CPU; leave out device=cuda",
        ),
        ({"debug": "sanitizer", "device": "cpu"}, "debug: sanitizer looks at kernels on a GPU; leave out device=cpu"),
        ({"time_wrong": "yes"}, "time_wrong: 'yes' is not allowed; give true or false"),
        ({"workload": {"name": "gelu"}}, "workload.*: missing; give it a value with workload"),
        ({"workload": {"name": "nosuch"}}, "workload=nosuch: no file runner/models/nosuch.py"),
        ({"workload": "gelu"}, "workload: no option chosen"),
        ({"workload": {"path": "k.py"}}, "workload: the YAML file of its option has no name; "),
        ({"measure": {}}, "nothing to observe"),
        (
            {"conclusion": ["ranking"]},
            "conclusion: 'ranking' is not an analysis; give its name and fields, as in {name: ",
        ),
        ({"measure": {"below": 3}}, "measure.below: belongs to no measurement; .* begins with the line # @package"),
    ],
)
def test_what_is_wrong_is_named(broken, line):
    with pytest.raises(BadInput, match=line):
        grid.plan_grid([config(**broken)])

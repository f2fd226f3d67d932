"""Every YAML file of conf/ composes, is valid, and explains the fields of its class."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from runner import config, implementations
from runner.config import grid
from runner.findings.conclusion import check
from runner.records.options import CONF, option_class
from runner.records.plan import Resume
from runner.records.schema import RANKED, build

PACKAGES = {"workload": "models", "measure": "measure", "launcher": "execute", "log": "report"}
FILES = sorted(CONF.glob("*/*.yaml"))
OPTIONS = [path for path in FILES if path.parent.name not in ("experiment", "shapes")]  # those with a class


def the_class(group: str, name: str) -> type:
    return implementations.implementation_class(name) if group == "impl" else option_class(PACKAGES[group], name)


@pytest.mark.parametrize("path", OPTIONS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_yaml_has_the_fields_of_its_class_and_a_comment_for_each(path: Path):
    values = yaml.safe_load(path.read_text())
    name = values.pop("name")
    assert name == path.stem
    beside = {name for key in ("axes", "quick", "shape") for name in values.pop(key, ())}
    fields = {field.name for field in dataclasses.fields(the_class(path.parent.name, name))} - {*RANKED}
    expected = {field.rstrip("_") for field in fields}
    if name == "torch":  # PyTorch's own operators have no revisions here
        expected -= {"rev", "args"}
    assert set(values) == expected
    assert beside <= expected
    lines = path.read_text().splitlines()
    assert lines[0].startswith("#")
    for field in expected:
        line = next(line for line in lines if line.startswith(f"{field}:"))
        assert "# " in line, f"{path.name}: {field} is not explained"


@pytest.mark.parametrize("path", sorted((CONF / "workload").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_point_of_a_workloads_default_sweep_is_valid(path: Path):
    values = yaml.safe_load(path.read_text())
    name, axes, _ = (values.pop(key) for key in ("name", "axes", "shape"))
    values = {key: 8 if isinstance(value, str) and value.startswith("${") else value for key, value in values.items()}
    for field, choices in axes.items():
        for choice in choices:
            build(the_class("workload", name), values | {field: choice}, "workload")


def test_an_enumeration_in_a_comment_is_the_one_of_the_class():
    text = (CONF / "workload" / "mlp.yaml").read_text()
    fields = {field.name: field.type for field in dataclasses.fields(option_class("models", "mlp"))}
    assert "pass_" in fields
    for word in ("gelu", "relu", "fwd_bwd", "train_step", "every_step", "accumulate"):
        assert word in text


def test_globals_are_the_fields_of_config_yaml():
    values = yaml.safe_load((CONF / "config.yaml").read_text())
    fields = {field.name for field in dataclasses.fields(grid.Globals)}
    assert fields == set(values) - {"defaults", "hydra", "log", "resume", "columns", "conclusion", *grid.AXES}
    assert {field.name for field in dataclasses.fields(Resume)} == set(values["resume"])


def test_the_lectures_profiles_are_at_its_sizes():
    """Matmuls of 2048 and 128 (m, n, k), and distances of 2048 points to 2048, of 2048 coordinates (n, m, d)."""
    sizes = {}
    for case in config.plan(["+experiment=lecture_profiles", "-m", "device=cuda"]).cases:
        fields = case.workload.fields
        sizes.setdefault(case.workload.name, set()).add(tuple(fields[name] for name in "mnkd" if name in fields))
    assert sizes["matmul"] == {(2048, 2048, 2048), (128, 128, 128)}
    assert sizes["cdist"] == {(2048, 2048, 2048)}


def test_every_named_set_of_shapes_is_valid_for_its_workloads():
    for path in sorted((CONF / "shapes").glob("*.yaml")):
        shapes = yaml.safe_load(path.read_text())
        plan = config.plan([f"workload={','.join(shapes)}", f"+shapes={path.stem}", "-m"])
        assert len(plan.cases) == sum(map(len, shapes.values())), path.name


@pytest.mark.parametrize("device", ["cuda", pytest.param("cpu", marks=pytest.mark.long)])
@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_analyses_of_an_experiment_are_known_on_both_devices(path: Path, device: str):
    plan = config.plan([f"+experiment={path.stem}", "-m", f"device={device}"])
    assert bool(plan.question) == bool(plan.conclusion)
    for analysis in plan.conclusion:
        check(analysis, plan.cases)

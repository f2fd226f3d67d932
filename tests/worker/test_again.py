"""A case once more, in a process that a tool would have started."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from kernels import spans
from runner import child
from runner.case import Case, Choice
from runner.measure import CannotObserve, Scene
from runner.options import CONF
from runner.worker import again


def mlp(impl="torch", **changes):
    fields = yaml.safe_load((CONF / "workload" / "mlp.yaml").read_text())
    fields = {name: value for name, value in fields.items() if name not in ("name", "axes")}
    small = {"dim": 8, "batch": 4, "layers": 2, "steps": 2}
    return Case(Choice("mlp", fields | small | changes), Choice(impl, {}), (), "cpu", 0)


def done(scene):
    ran = subprocess.run(scene.command(3), env=child.environment(), capture_output=True, text=True, timeout=120)
    return ran, json.loads((scene.folder / "again.json").read_text())


def test_it_is_built_checked_and_called(tmp_path):
    ran, found = done(Scene("cpu", mlp(), tmp_path / "of" / "it"))
    assert ran.returncode == 0, ran.stderr
    assert found["n"] == len(found["calls_us"]) == 3
    assert all(0 < us < 1e6 for us in found["calls_us"])


def test_what_cannot_be_called_says_why(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def wrong(x, *_, **more): return x + 1\ndef fails(*_, **more): raise KeyError('no')\n")
    for name, why in (("wrong", "wrong: "), ("fails", "KeyError: 'no'")):
        case = mlp(**{"pass": "fwd"})
        case = Case(case.workload, Choice("file", {"path": f"{path}:{name}"}), (), "cpu", 0)
        ran, found = done(Scene("cpu", case, tmp_path / name))
        assert ran.returncode == 1
        assert found["error"].startswith(why)


def test_a_call_of_no_case_cannot_be_done_again(tmp_path):
    with pytest.raises(CannotObserve, match="of none"):
        Scene("cpu", None, tmp_path).command(1)
    with pytest.raises(CannotObserve, match="no folder"):
        Scene("cpu", mlp()).command(1)


@pytest.mark.parametrize(
    ("pass_", "expected"),
    [
        ("fwd", ["step_0", "forward", "layer_0", "layer_1", "step_1", "forward", "layer_0", "layer_1"]),
        ("train_step", [*["step_0", "forward", "layer_0", "layer_1", "backward", "optimizer_step"], "step_1"]),
    ],
)
def test_its_parts_have_names_while_somebody_watches(pass_, expected):
    seen = []

    def named(name):
        seen.append(name)
        return nullcontext()

    with spans.watched(named):
        again.again(mlp(**{"pass": pass_}), 1)
    first = seen.index(again.CALL, seen.index(again.MODEL))
    assert seen[0] == again.MODEL
    assert seen.count(again.CALL) == 1 + again.WARM_UP
    assert seen[first + 1 :][: len(expected)] == expected
    before = len(seen)
    again.again(mlp(), 1)
    assert len(seen) == before


def test_the_program_is_where_the_measurement_says():
    assert Path(child.ROOT, *again.__name__.split(".")).with_suffix(".py").is_file()
    assert os.path.basename(Scene.command.__globals__["AGAIN"].replace(".", os.sep)) == "again"

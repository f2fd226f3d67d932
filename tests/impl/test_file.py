"""A user's own function, under a name of the user's own."""

from __future__ import annotations

import sys

import pytest

from runner import compose, impl
from runner.case import Choice
from runner.errors import BadInput
from runner.impl.file import File

USER = "def mine(x):\n    return x\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    return f"{tmp_path}/user.py:mine"


def test_a_name_that_nothing_has_beside_a_path_is_that_functions(path):
    assert impl.build(Choice("my_gelu", {"path": path})) == File(path)


def test_it_may_import_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text("from beside_mine import twice\ndef mine(x): return twice(x)\n")
    (tmp_path / "beside_mine.py").write_text("def twice(x): return 2 * x\n")
    assert File(f"{tmp_path}/mine.py:mine").load("gelu")(21) == 42


@pytest.mark.parametrize("name", ["triton", "compiled"])
def test_a_name_that_something_has_is_not_for_a_function_of_ones_own(path, name):
    with pytest.raises(BadInput, match="impl"):
        impl.build(Choice(name, {"path": path}))


def test_two_of_them_are_told_apart_and_either_may_be_the_baseline(tmp_path, path):
    (tmp_path / "mine" / "impl").mkdir(parents=True)
    for name in ("first", "second"):
        (tmp_path / "mine" / "impl" / f"{name}.yaml").write_text(f"name: {name}\npath: {path}\n")
    words = ["--config-dir", str(tmp_path / "mine"), "impl=first,second", "workload.cols=8", "log=none", "-m"]
    plan = compose.plan([*words, f"allow_code={tmp_path}", "baseline=second"])
    assert ([case.impl.name for case in plan.cases], plan.baseline) == (["first", "second"], "second")
    with pytest.raises(BadInput, match="not named on the command line"):
        compose.plan(words)

"""What is wrong with a command line is said in one sentence, with what to type. As tests/e2e does, in this process."""

from __future__ import annotations

import sys

import pytest

from runner import compose
from runner.child import ROOT
from runner.errors import BadInput

MISTAKES = {
    "a field of the benchmark without it": (
        ["measure=[profile]", "measure.benchmark.max_s=0.05"],
        "measure.benchmark: not chosen; name it, as in 'measure=[benchmark,profile]'",
    ),
    "a comma too many": (
        ["impl=torch,naive,", "-m"],
        "impl=torch,naive,: nothing stands before or after a comma; leave that comma out",
    ),
    "a file that is no Python": (
        ["impl=file", f"impl.path={ROOT}/README.md:softmax"],
        f"impl.path: {ROOT}/README.md is no Python file; write impl.path=my_softmax.py:softmax",
    ),
    "a folder without a suffix": (["impl=file", "impl.path=/tmp:f"], "impl.path: /tmp is no Python file; write"),
    "a column that is a mapping": (
        ["measure.columns={a:1}"],
        "measure.columns: no such column {'a': 1}; one of: ",
    ),
    "a column that is a list": (["measure.columns=[[gpu_us]]"], "measure.columns: no such column ['gpu_us']; "),
    "a seed that no generator takes": (
        ["seed=99999999999999999999"],
        "seed: 99999999999999999999 is not allowed; give at most 18446744073709551615",
    ),
}


@pytest.mark.parametrize(("words", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(words, line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput) as refused:
        compose.plan(words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)

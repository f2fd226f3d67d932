"""What is wrong with a command line is said in one sentence, with what to type. As tests/e2e does, in this process."""

from __future__ import annotations

import sys

import pytest

from runner import compose
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
}


@pytest.mark.parametrize(("words", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(words, line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput) as refused:
        compose.plan(words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)

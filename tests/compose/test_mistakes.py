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
    "a folder as Hydra has it": (
        ["hydra.run.dir=here"],
        "hydra.run.dir: not used here; give output_dir=..., within which name=... names the run's folder",
    ),
    "a folder of a sweep as Hydra has it": (["hydra.sweep.dir=here", "-m"], "hydra.sweep.dir: not used here; "),
    "a name as Hydra has it": (["hydra.job.name=mine"], "hydra.job.name: not used here; give name=..., "),
    "a field of a config that is only shown": (
        ["workload.rows=abc", "--cfg", "job"],
        "workload.rows: 'abc' is not allowed; give a whole number at least 1",
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


@pytest.mark.parametrize("words", [["+experiment=compare_gelu"], ["workload=mlp", "workload.batch=8"]])
def test_a_config_that_is_valid_is_shown_as_hydra_has_it(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["runner"])
    assert compose.plan([*words, "--cfg", "job"]) is None
    assert "default_axes: true" in capsys.readouterr().out

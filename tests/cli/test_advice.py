"""A run that will take minutes on a CPU says so before it starts, with a smaller run that can be pasted."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from runner import config
from runner.cli._advice import SHORT_S, advice
from runner.findings.duration import estimate

LLAMA = ("workload=matmul", "+shapes=llama3_8b", "-m")


@pytest.fixture
def told(tmp_path):
    """``told(word, ...)``: what a run with these words says before it starts."""

    def say(*words, devices=lambda plan: {"cpu"}, **changed):
        plan = config.plan([*words, f"output_dir={tmp_path}"])
        assert plan
        return advice(plan.cases, replace(plan, **changed), [*words, f"output_dir={tmp_path}"], devices)

    return say


@pytest.mark.parametrize(
    "words",
    [
        LLAMA,
        ("workload=matmul", "impl=naive", "workload.size=2048,4096", "-m"),
        ("workload=cumsum", "impl=torch,naive", "-m"),
        ("workload=gelu,softmax", "workload.rows=65536,131072", "workload.cols=4096", "seed=3", "-m"),
        ("workload=softmax", "workload.shape=[65536,16384]"),
        ("workload=cdist", "workload.n=65536", "workload.m=65536", "quick=true"),
    ],
)
def test_a_long_run_names_a_short_one_of_the_same_implementations(told, words):
    sentence = told(*words, "device=cpu")
    head, _, command = sentence.partition(": python -m runner ")
    assert head.startswith("this will take about ")
    assert head.partition(" on this CPU (a guess); to try it in ")[2]
    typed = shlex.split(command)
    smaller = config.plan(typed)
    assert smaller
    assert estimate(smaller.cases, "none", {"cpu"}).total_s < SHORT_S
    assert {case.impl.name for case in smaller.cases} == {case.impl.name for case in config.plan(words).cases}
    assert all(case.settings.quick for case in smaller.cases)
    assert {word for word in words if word.startswith(("workload=", "seed", "impl"))} <= {*typed}


def test_a_short_run_says_nothing(told):
    assert told("workload=gelu", "impl=naive,torch", "workload.cols=256,1024", "device=cpu", "-m") == ""


def test_a_run_elsewhere_or_on_a_gpu_says_nothing(told, monkeypatch):
    assert told(*LLAMA, devices=lambda plan: {"NVIDIA H100"}) == ""
    assert told(*LLAMA, "device=cpu", "launcher=slurm") == ""
    monkeypatch.setattr("runner.cli._advice.NVIDIA_DEVICE", "/")
    assert told(*LLAMA) == ""
    assert told(*LLAMA, "device=cpu") != ""


def test_a_resumed_run_says_how_to_go_on(told):
    plan = config.plan(LLAMA)
    assert plan
    sentence = told(*LLAMA, "device=cpu", resume=replace(plan.resume, of="last"))
    assert sentence.endswith("; Ctrl-C keeps the cases that are done, and resume=last goes on")

"""`resume=` on the command line: how it is normalized, and when it takes the grid of the earlier run."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import pytest

from runner import config
from runner.config.grid import validate
from runner.config.words import normalize
from runner.records.bad_input import BadInput
from runner.store import journal, run_folder

ASKED = ["question='Why, and when?'", "conclusion=[{name:values,columns:[wall_us]},{name:ranking}]"]
SWEEP = ["workload=gelu", "workload.cols=8,16", "impl=naive,torch", "-m"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A run in `outputs` whose settings are not the defaults."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    plan = config.plan(
        [*SWEEP, "log=none", "launcher.measure_limit_s=7", "baseline=naive", "columns=[wall_us]", *ASKED]
    )
    folder = run_folder.claim("outputs", plan.name)
    run_folder.write_plan(folder, plan, plan.cases)
    journal.Journal(folder).close()
    return folder, plan


@pytest.mark.parametrize(
    ("word", "normal"),
    [
        ("resume=last", "resume.of='last'"),
        ("resume=outputs/2026-11-21/06-47-49-gelu+softmax", "resume.of='outputs/2026-11-21/06-47-49-gelu+softmax'"),
        ("resume=a=b,c it's", r"resume.of='a=b,c it\'s'"),
        ("resume='last'", "resume.of='last'"),
        ("resume=null", "resume.of=null"),
        ("resume=", "resume.of=null"),
        ("resume.of=last", "resume.of='last'"),
        ("resume.retry=oom,crashed", "resume.retry=[oom,crashed]"),
        ("resume.retry=[oom,crashed]", "resume.retry=[oom,crashed]"),
        ("resume.retry=", "resume.retry=[]"),
        ("resume.ignore=measure", "resume.ignore=[measure]"),
        ("workload=gelu", "workload=gelu"),
        ("-m", "-m"),
        ("resume", "resume"),
        ("resume.retry", "resume.retry"),
        ("columns", "columns"),
        ("axes={workload.cols:[2,3]}", "+axes={workload.cols:[2,3]}"),
        ("axes={}", "axes=null"),
        ("on_cpu={workload.cols:[2]}", "+on_cpu={workload.cols:[2]}"),
        ("one_at_a_time={}", "one_at_a_time=null"),
        ("workload.axes={}", "workload.axes=null"),
        ("workload.axes={cols:[2]}", "workload.axes={cols:[2]}"),
        ("baseline=compiled(of=torch)", "baseline='compiled(of=torch)'"),
        ("baseline=file(path=it's (1).py:f, x=2)", r"baseline='file(path=it\'s (1).py:f, x=2)'"),
        ("baseline=naive", "baseline=naive"),
        ("baseline=naive,torch", "baseline=naive,torch"),
        ("baseline=null", "baseline=null"),
        ("baseline=", "baseline="),
    ],
)
def test_a_word_becomes_what_hydra_takes(word, normal):
    assert normalize(word) == normal
    assert normalize(normal) == normal


def test_resume_alone_is_the_whole_of_the_earlier_run(here):
    folder, before = here
    for words in (["resume=last"], [f"resume={folder}"], ["resume=last", "output_dir=outputs"], ["-m", "resume=last"]):
        plan = config.plan(words)
        assert (plan.cases, plan.name, plan.baseline) == (before.cases, before.name, before.baseline)
        assert (plan.launcher, plan.log, plan.columns) == (before.launcher, before.log, before.columns)
        assert (plan.question, plan.conclusion) == (before.question, before.conclusion) != (None, ())
        assert (plan.resume.of, plan.whole) == (str(folder), True)
        assert "timeout" in plan.resume.retry
        assert "wrong" not in plan.resume.retry


def test_last_passes_over_a_run_that_was_killed_before_its_journal_began(here):
    folder, plan = here
    later = run_folder.claim("outputs", plan.name)
    run_folder.write_plan(later, plan, plan.cases)
    assert config.plan(["resume=last"]).resume.of == str(folder)
    journal.Journal(later).close()
    assert config.plan(["resume=last"]).resume.of == str(later)


def test_what_chooses_no_cases_may_be_said_anew(here):
    _, before = here
    plan = config.plan(["resume=last", "launcher.build_limit_s=5", "resume.retry=oom", "baseline=torch"])
    assert plan.cases == before.cases
    assert plan.launcher.fields == {**before.launcher.fields, "build_limit_s": 5.0}
    assert (plan.baseline, plan.log, plan.columns) == ("torch", before.log, before.columns)
    assert (plan.resume.retry, plan.whole) == (("oom",), True)
    assert config.plan(["resume=last", "log=wandb", "launcher=local"]).launcher.fields["measure_limit_s"] == 300
    with pytest.raises(BadInput, match="baseline=triton: not in this sweep; one of: naive, torch"):
        config.plan(["resume=last", "baseline=triton"])


def test_a_variant_is_the_baseline_of_a_run_and_of_those_that_resume_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ["workload=gelu", "impl=compiled", "impl.of=naive,torch", "log=none", "-m"]
    plan = config.plan([*grid, "baseline=compiled(of=torch)"])
    assert plan.baseline == "compiled(of=torch)"
    folder = run_folder.claim("outputs", plan.name)
    run_folder.write_plan(folder, plan, plan.cases)
    journal.Journal(folder).close()
    assert config.plan(["resume=last"]).baseline == config.plan(["resume=last", "log=wandb"]).baseline == plan.baseline
    assert config.plan(["resume=last", "baseline=compiled(of=naive)"]).baseline == "compiled(of=naive)"
    with pytest.raises(BadInput, match=r"one of: compiled\(of=naive\), compiled\(of=torch\)"):
        config.plan(["resume=last", "baseline=mine.py:f"])


def test_what_chooses_cases_means_the_grid_that_it_says(here):
    plan = config.plan([*SWEEP[:-1], "seed=1", "-m", "resume=last", "resume.ignore=measure,device"])
    assert {case.settings.seed for case in plan.cases} == {1}
    assert (plan.resume.of, plan.whole, plan.resume.ignore) == ("last", False, ("measure", "device"))
    assert config.plan(["workload=mlp", "resume=last"]).name == "mlp"


@pytest.mark.parametrize("field", ["quick=true", "impl=torch"])
def test_a_field_of_cases_does_not_choose_those_of_the_default_workload(here, field):
    """``resume=last quick=true`` meant the newest run called gelu, and ``resume=FOLDER seed=1`` put a gelu into any."""
    for of in ("last", here[0]):
        with pytest.raises(BadInput, match=f"^resume={of}: {field} chooses cases; add the rest of the command"):
            config.plan([field, f"resume={of}"])
        assert config.plan([field, f"resume={of}", "workload=gelu"]).name == "gelu"
    assert config.plan(["resume=null", field]).name == "gelu"


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["resume"], "resume=last"),
        (["columns"], "columns=..."),
        (["resume=last", "resume.retry"], "resume.retry=..."),
        (["resume=last", "nothing"], "workload=gelu"),
        (["softmax"], "workload=softmax"),
        (["triton"], "impl=triton"),
        (["demo"], r"\+experiment=demo"),
    ],
)
def test_a_word_without_a_value_starts_nothing(here, words, example):
    line = f"^{words[-1]}: not an override; write group=option or field=value, as in {example}$"
    with pytest.raises(BadInput, match=line):
        config.plan(words)


def test_without_it_nothing_is_resumed(here):
    assert config.plan(["workload=mlp"]).resume.of is None
    assert config.plan(["resume=null"]).resume.of is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["resume=nowhere"], "resume=nowhere: there is no such folder; give outputs/"),
        (["resume=last", "name=other"], "resume=last: there is no run called other under outputs"),
        (["resume=last", "output_dir=elsewhere"], "resume=last: there is no run under elsewhere"),
        (["resume=last", "resume.retry=oomm"], "resume.retry: 'oomm' is not allowed; did you mean oom\\? One of: "),
        (["resume=last", "resume.ignore=gpu"], "resume.ignore: 'gpu' is not allowed; one of: device, measure, sources"),
        (["resume=last", "resume.retri=oom"], "resume.retri: no such field; did you mean retry\\? One of: "),
        (["workload=gelu", "resume=last", "resume.retry=oomm"], "resume.retry: 'oomm' is not allowed"),
        (["resume=last", "launcher.limit=3"], "launcher.limit: no such field"),
    ],
)
def test_a_mistake_is_one_line(here, words, line):
    with pytest.raises(BadInput, match=line):
        config.plan(words)


def test_a_folder_without_a_plan_says_what_to_do(here):
    folder, _ = here
    (folder / run_folder.PLAN).unlink()
    with pytest.raises(BadInput, match=r"it has no plan.jsonl; repeat the command that began it, with resume="):
        config.plan([f"resume={folder}"])
    assert config.plan([*SWEEP, f"resume={folder}"]).resume.of == str(folder)


FINE = [
    {"baseline": None},
    {"question": None},
    {"question": "a=b"},
    {"log": [{"name": "wandb", "tags": 5}]},
]  # the reporter's own class refuses the latter
HEAD = {
    "name": "x",
    "baseline": None,
    "launcher": {"name": "local"},
    "log": [],
    "columns": [],
    "question": None,
    "conclusion": [],
    "choices": [],
}


@pytest.mark.parametrize(
    "odd",
    [{name: value} for name in HEAD for value in (5, "a=b", [1], {"a": 1}, None, True)]
    + [{"launcher": {"name": "local", "a b": {"c": [1]}}}, *FINE],
    ids=str,
)
def test_an_odd_value_in_a_plan_is_one_line(here, odd):
    folder, _ = here
    path = folder / run_folder.PLAN
    path.write_text(json.dumps({**HEAD, **odd}) + "\n")
    with pytest.raises(BadInput) if odd not in FINE else nullcontext() as error:
        assert config.plan([f"resume={folder}"]).cases == ()
    assert "\n" not in str(error.value if error else "")


def test_a_case_of_old_that_could_not_be_asked_for_today_is_refused(here, tmp_path):
    (tmp_path / "mine.py").write_text("def f(x): return x")
    plan = config.plan(["impl=file", "impl.path=mine.py:f"])
    validate(plan.cases)
    (tmp_path / "mine.py").unlink()
    with pytest.raises(BadInput, match=r"impl.path: there is no file mine.py"):
        validate(plan.cases)

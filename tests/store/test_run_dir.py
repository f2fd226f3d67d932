"""The run's folder."""

from __future__ import annotations

import yaml

from runner.records.case import Choice
from runner.records.plan import Plan
from runner.store import run_folder


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    folders = {run_folder.claim(str(tmp_path), "x") for _ in range(5)}
    assert len(folders) == 5


def test_resolved_configs_are_one_document_each(case, tmp_path):
    plan = Plan(
        cases=(case(cols=1), case(cols=2)),
        name="x",
        baseline=None,
        output_dir="",
        launcher=Choice("local", {}),
        log=(),
    )
    run_folder.write_plan(tmp_path, plan, plan.cases)
    run, *cases = yaml.safe_load_all((tmp_path / "configs.yaml").read_text())
    assert run["name"] == "x"
    assert [document["workload"]["cols"] for document in cases] == [1, 2]
    assert [document["key"] for document in cases] == [each.key for each in plan.cases]


def test_the_environment_holds_no_secret(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    facts = run_folder.environment(["runner", "workload=gelu", "log.api_key=s3cr3t", "+my_token=s3cr3t"])
    assert "s3cr3t" not in str(facts)
    assert "workload=gelu" in facts["command"]
    assert facts["packages"]["hydra-core"]

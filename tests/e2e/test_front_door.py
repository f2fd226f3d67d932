"""--help, --cfg, completion and flags work as in other Hydra programs, and start quickly."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from runner import __version__, cli
from runner.config import plan
from runner.device.processes import ROOT


def options(group):
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def test_help_lists_groups_options_and_examples(run):
    result = run("--help")
    assert result.code == 0
    for group in ("workload", "impl"):
        assert f"{group}: {', '.join(options(group))}\n" in result.out
    assert "python -m runner workload=mlp impl=compiled -m" in result.out
    assert "python -m runner --help workload=mlp impl=compiled " in result.out
    for path in (ROOT / "runner" / "cli").glob("[!_]*.py"):  # the sub-commands
        assert f"\n  {path.stem} " in result.out
    assert result.folder is None


def test_help_shows_the_fields_of_the_options_chosen_with_their_meaning_and_values(run):
    assert "layers=4" not in run("--help").out
    shown = run("--help", "workload=mlp", "impl=compiled,naive").out
    assert re.search(r"workload\.layers=4 +linear layers, each followed by the activation; at least 1\n", shown)
    assert re.search(r"workload\.activation=gelu +gelu \(erf form\) \| relu\n", shown)
    assert re.search(r"impl\.fullgraph=false +true: fail if a part cannot be compiled", shown)
    assert re.search(r"resume\.of=null +folder of the run, or last", shown)


def test_help_knows_the_options_of_a_folder_of_the_users(run, tmp_path):
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    (tmp_path / "mine" / "workload" / "wide.yaml").write_text(
        "defaults: [gelu]\nname: gelu\ncols: 9999  # as wide as ours\n"
    )
    shown = run("--help", "workload=wide", "--config-dir", "mine").out
    assert f"workload: {', '.join([*options('workload'), 'wide'])}\n" in shown
    assert re.search(r"workload\.cols=9999 ", shown)


def test_a_key_of_a_yaml_with_a_newline_or_an_escape_code_is_one_line_of_the_help(run, tmp_path):
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    (tmp_path / "mine" / "workload" / "odd.yaml").write_text('name: gelu\n"odd\\nkey\\e[31m": 1\n')
    assert "  workload.odd?key?[31m=1\n" in run("--help", "workload=odd", "--config-dir", "mine").out


def test_the_version_is_the_runners_own(run):
    assert run("--version").out == f"kernel-runner {__version__}\n"


def test_folders_named_as_packages_of_ours_are_in_nobodys_way(run, tmp_path):
    for name in ("models", "kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError")
    result = run("workload.rows=8", "workload.cols=8", "impl=torch,compiled", "measure.benchmark.max_s=0.01", "-m")
    assert result.statuses() == {"torch": "ok", "compiled": "ok"}, result.err


def test_cfg_job_shows_the_config_and_runs_nothing(run):
    result = run("--cfg", "job", "workload=matmul", "workload.size=64", "--resolve")
    assert result.code == 0
    assert yaml.safe_load(result.out)["workload"]["m"] == 64
    assert result.folder is None


@pytest.mark.parametrize("flag", [["--help"], ["--cfg", "job"], ["workload=mpl"], ["--info", "defaults"]])
def test_the_way_to_the_front_door_is_light(command, flag):
    """Neither torch nor pandas nor wandb is imported to show help, a config or a mistake."""
    words, options = command(*flag)
    probe = f"""
import atexit, os, sys
def look():
    heavy = {{"torch", "triton", "pandas", "wandb"}} & set(sys.modules)
    if heavy:
        sys.stderr.write(f"imported {{heavy}}")
        os._exit(77)
atexit.register(look)
sys.argv = ["runner", *{words[3:]!r}]
from runner.cli import main
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, **options)
    assert done.returncode in (0, 2), done.stderr


COMPLETED = {
    "runner workload=ml": "workload=mlp",
    "python -m runner workload=ml": "workload=mlp",
    "runner plan workload=gel": "workload=gelu",
    "runner pl": "plan",
    "runner v": "verify version",
    "runner ru": "run",
    "runner run workload=ml": "workload=mlp",
    "runner impl=naive,thr": "impl=naive,three_pass",
    "runner workload.d": "workload.dtype= workload.data=",
    "runner workload=mlp workload.lay": "workload.layers=",
    "runner workload=mlp workload.pass=fwd,": "workload.pass=fwd,fwd_bwd workload.pass=fwd,train_step",
    "runner measure.benchmark.instrument=cu": "measure.benchmark.instrument=cuda_events",
    "runner workload.tf32=": "workload.tf32=true workload.tf32=false",
    "runner device=c": "device=cpu device=cuda",
    "runner +experiment=lecture_p": "+experiment=lecture_profiles",
    "runner +experiment=lecture_m": "+experiment=lecture_matmul +experiment=lecture_mlp",
    "runner workload=nope launcher=s": "launcher=slurm",
    "runner resume=": "resume=last",
    "runner seed=": "",
}


@pytest.mark.parametrize(("line", "answer"), COMPLETED.items(), ids=COMPLETED)
def test_completion_answers_with_options_fields_values_and_sub_commands(line, answer, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert cli.main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == answer.split()


def test_completion_needs_no_torch_and_is_installed_by_hydra(command):
    _, options = command(log=None)
    asked = {"query=bash": "workload=mlp", "install=bash": "hydra_bash_completion"}
    for query, answer in asked.items():
        env = options["env"] | {"COMP_LINE": "runner workload=ml", "COLD": "1"}
        words = [sys.executable, "-m", "runner", "-sc", query]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=options["cwd"], env=env)
        assert answer in done.stdout
        assert done.stderr == ""


def test_m_works_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    for arguments in (["-m", "impl=naive,torch"], ["impl=naive,torch", "-m"], ["impl=naive,torch", "--multirun"]):
        assert len(plan([*arguments, "workload.rows=4", "workload.cols=4"]).cases) == 2


def test_m_and_cfg_together_are_refused_in_one_line(run):
    result = run("-m", "--cfg", "job")
    assert result.code == 2
    assert result.err.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(command):
    words, options = command("--help")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.long
def test_an_encoding_without_stars_still_gets_the_table(run):
    result = run("impl=naive,torch", "workload.rows=512", "-m", env={"PYTHONIOENCODING": "ascii"})
    assert result.code == 0
    assert result.err == ""
    assert "* torch " in result.out

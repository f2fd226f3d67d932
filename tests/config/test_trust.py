"""YAML and run folders of others choose what is computed; they name no code, read no environment, and stay small."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys

import pytest

from runner import config
from runner.config import trust
from runner.experiment.schema import BadInput
from runner.store import run_folder

USER = "def mine(x):\n    return x\n"


@pytest.fixture
def theirs(tmp_path):
    """A folder of configs: an experiment that names code, and whatever else is written into it."""
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "experiment").mkdir()

    def write(text, name="theirs"):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")
        return ["--config-dir", str(tmp_path), f"+experiment={name}"]

    return write


def names_code(tmp_path):
    return (
        f"defaults:\n  - override /workload: gelu\n  - override /impl: file\nimpl:\n  path: {tmp_path}/user.py:mine\n"
    )


def test_code_that_only_a_yaml_names_is_not_run(theirs, tmp_path):
    with pytest.raises(BadInput, match=rf"not named on the command line; to run it add allow_code={tmp_path}/user.py"):
        config.plan(theirs(names_code(tmp_path)))


def test_what_is_to_be_added_can_be_pasted_whatever_the_path(theirs, tmp_path):
    folder = tmp_path / "my größe $x"
    folder.mkdir()
    (folder / "user.py").write_text(USER)
    words = theirs(names_code(tmp_path).replace(f"{tmp_path}/user.py:mine", f"'{folder}/user.py:mine'"))
    with pytest.raises(BadInput) as refused:
        config.plan(words)
    (word,) = shlex.split(str(refused.value).partition("to run it add ")[2])
    assert len(config.plan([*words, word]).cases) == 1


@pytest.mark.parametrize("word", ["allow_code={0}/user.py", "allow_code={0}", "allow_code=[{0}/other,'{0}/user.py']"])
def test_allow_code_opens_a_file_or_a_folder(theirs, tmp_path, word):
    (case,) = config.plan([*theirs(names_code(tmp_path)), word.format(tmp_path)]).cases
    assert case.impl.fields["path"] == f"{tmp_path}/user.py:mine"


def test_a_yaml_cannot_open_the_door_itself(theirs, tmp_path):
    words = theirs(names_code(tmp_path) + "allow_code: [/]\n")
    with pytest.raises(BadInput, match="not named on the command line"):
        config.plan(words)
    with pytest.raises(BadInput, match="not named on the command line"):
        config.plan([*words, f"allow_code={tmp_path}/us"])  # the beginning of a name is not the name


@pytest.mark.parametrize("sweep", [False, True])
def test_a_path_on_the_command_line_is_the_users_own(tmp_path, sweep):
    for name in ("user", "other"):
        (tmp_path / f"{name}.py").write_text(USER)
    paths = [f"{tmp_path}/user.py:mine"] + [f"{tmp_path}/other.py:mine"] * sweep
    words = [
        "workload=gelu",
        "workload.cols=8",
        "impl=file",
        f"impl.path={','.join(paths)}",
        *(["-m"] if sweep else []),
    ]
    assert [case.impl.fields["path"] for case in config.plan(words).cases] == paths


@pytest.mark.parametrize("wrapper", ["compiled", "cudagraph"])
def test_what_a_wrapper_wraps_is_code_too(theirs, tmp_path, wrapper):
    (tmp_path / "user.py").write_text(USER)
    named = f"{tmp_path}/user.py:mine"
    words = theirs(f"defaults:\n  - override /impl: {wrapper}\nimpl:\n  of: {named}\n")
    with pytest.raises(BadInput, match=r"impl\.of=.*user\.py:mine: this code is not named on the command line"):
        config.plan(words)
    assert config.plan([*words, f"impl.of={named}"]).cases[0].impl.fields["of"] == named


def test_a_run_folder_that_others_can_write_names_no_code(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    plan = config.plan(["workload=gelu", "impl=file", f"impl.path={tmp_path}/user.py:mine"])
    folder = run_folder.claim(str(tmp_path / "outputs"), "x")
    run_folder.write_plan(folder, plan, plan.cases)
    (folder / "rows.jsonl").write_text("")
    resume = [f"resume={folder}"]
    assert config.plan(resume).cases == plan.cases
    os.chmod(folder, 0o777)
    with pytest.raises(BadInput, match="not named on the command line"):
        config.plan(resume)
    assert config.plan([*resume, f"allow_code={tmp_path}"]).cases == plan.cases


PROGRAMS = {  # what a YAML may choose → what of it is for a program, as the command line gives it
    "nsys": (
        "defaults:\n  - override /measure: [nsys]\nmeasure:\n  nsys: {path: /tmp/x}\n",
        "measure.nsys.path=/tmp/x",
    ),
    "args of nsys": (
        "defaults:\n  - override /measure: [nsys]\nmeasure:\n  nsys: {args: [--a=b, --c]}\n",
        'measure.nsys.args=["--a=b",--c]',
    ),
    "ncu": ("defaults:\n  - override /measure: [ncu]\nmeasure:\n  ncu: {path: ./x}\n", "measure.ncu.path=./x"),
    "args of ncu": (
        "defaults:\n  - override /measure: [ncu]\nmeasure:\n  ncu: {args: --mode=launch}\n",
        "measure={ncu:{args:'--mode=launch'}}",
    ),
    "slurm": (
        'defaults:\n  - override /launcher: slurm\nlauncher:\n  extra: ["setup=touch x", qos=high]\n',
        "launcher.extra='qos=high','setup=touch x'",
    ),
    "ray": (
        "defaults:\n  - override /launcher: ray\nlauncher:\n  address: there:6379\n",
        "launcher.address='there:6379'",
    ),
}


@pytest.mark.parametrize(("text", "word"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_what_is_for_a_program_stands_on_the_command_line(theirs, tmp_path, text, word):
    words = theirs(text.replace("defaults:\n", "defaults:\n  - override /workload: gelu\n"))
    with pytest.raises(BadInput, match="is for a program, and not on the command line") as refused:
        config.plan(words)
    assert len(config.plan([*words, word]).cases) == 1
    (added,) = shlex.split(str(refused.value).partition(f"stands in {tmp_path}: ")[2])
    assert len(config.plan([*words, added]).cases) == 1


def test_a_run_folder_that_others_can_write_tells_programs_nothing(tmp_path):
    words = ["workload=gelu", "measure=[nsys]", "measure.nsys.path=/tmp/x", "launcher=slurm", "launcher.extra=['a=b']"]
    plan = config.plan(words)
    folder = run_folder.claim(str(tmp_path / "outputs"), "x")
    run_folder.write_plan(folder, plan, plan.cases)
    (folder / "rows.jsonl").write_text("")
    resume = [f"resume={folder}"]
    assert [case.key for case in config.plan(resume).cases] == [case.key for case in plan.cases]
    os.chmod(folder, 0o777)
    with pytest.raises(BadInput, match=r"measure\.nsys\.path: '/tmp/x' is for a program"):
        config.plan(resume)
    assert config.plan([*resume, f"allow_code={folder}"]).launcher.name == "slurm"


@pytest.mark.parametrize(
    ("file", "word"),
    [("user.py", "impl.path=choice({0}:mine)"), ("a,b.py", 'impl.path="{0}:mine"'), ("a,b.py", 'allow_code="{0}"')],
)
def test_what_is_named_is_read_as_hydra_reads_it(theirs, tmp_path, file, word):
    (tmp_path / file).write_text(USER)
    words = theirs(names_code(tmp_path).replace(f"{tmp_path}/user.py:mine", f"'{tmp_path}/{file}:mine'"))
    (case,) = config.plan([*words, word.format(tmp_path / file), "-m", "axes=null", "default_axes=false"]).cases
    assert case.impl.fields["path"] == f"{tmp_path}/{file}:mine"


@pytest.mark.parametrize("where", ["name: x${oc.env:SECRET_TOKEN}\n", "workload:\n  form: ${oc.env:SECRET_TOKEN}\n"])
def test_a_config_cannot_read_the_environment(theirs, monkeypatch, where):
    monkeypatch.setenv("SECRET_TOKEN", "abc123")
    with pytest.raises(BadInput, match="a config cannot read the environment") as caught:
        config.plan(theirs("defaults:\n  - override /workload: gelu\n" + where))
    assert "abc123" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--config-name=evil", "--config-path=."])
def test_the_front_door_is_not_replaced(tmp_path, flag):
    """Hydra instantiates the callbacks of its own config, whatever they are."""
    evil = {"_target_": "os.mkdir", "path": str(tmp_path / "made")}
    (tmp_path / "evil.yaml").write_text(json.dumps({"hydra": {"callbacks": {"evil": evil}}}))
    with pytest.raises(BadInput, match="give it as --config-dir"):
        config.plan([flag, "--config-dir", str(tmp_path)])
    assert not (tmp_path / "made").exists()


CALLS = "{x: {(): runner.config.trust.marked}}"  # what logging calls when it is set up
WAYS = {  # file → what it holds, for a YAML to say something of Hydra itself
    "a key": {"experiment/theirs.yaml": f"# @package _global_\nhydra: {{hydra_logging: {{handlers: {CALLS}}}}}\n"},
    "a merged key": {
        "experiment/theirs.yaml": f"# @package _global_\n<<: {{hydra: {{hydra_logging: {{handlers: {CALLS}}}}}}}\n"
    },
    "a package": {"experiment/theirs.yaml": f"# @package hydra.hydra_logging\nhandlers: {CALLS}\n"},
    "a place in a defaults list": {
        "experiment/theirs.yaml": "# @package _global_\ndefaults: [/other@hydra.hydra_logging: one]\n",
        "other/one.yaml": f"handlers: {CALLS}\n",
    },
    "a file from elsewhere": {
        "experiment/theirs.yaml": "# @package _global_\ndefaults: [/../elsewhere/one@hydra.hydra_logging]\n",
        "../elsewhere/one.yaml": f"handlers: {CALLS}\n",
    },
}


@pytest.mark.parametrize("flags", [["--help"], ["--hydra-help"], []], ids=" ".join)
@pytest.mark.parametrize("files", WAYS.values(), ids=WAYS.keys())
def test_a_yaml_says_nothing_of_hydra_itself(files, flags, tmp_path, monkeypatch, capsys):
    """Hydra calls what its settings name, and sets up its logging before it prints a help."""
    called = []
    monkeypatch.setattr(trust, "marked", lambda **_: called.append(1) or logging.NullHandler(), raising=False)
    monkeypatch.setattr(sys, "argv", ["runner"])
    for name, text in files.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    with pytest.raises(BadInput, match=r"\.yaml: sets hydra, which a YAML of yours cannot; "):
        config.plan(["--config-dir", str(tmp_path / "mine"), "+experiment=theirs", *flags])
    assert not called


@pytest.mark.parametrize("link", [False, True])
def test_options_of_hydra_itself_are_not_replaced(tmp_path, link):
    """What the ConfigStore has, Hydra looks for there last: the sweeper among them."""
    sweeper = tmp_path / "elsewhere" / "sweeper"
    sweeper.mkdir(parents=True)
    (sweeper / "grid.yaml").write_text("defaults: [/hydra/callbacks: evil]\n")
    (tmp_path / "mine").mkdir()
    place = tmp_path / "mine" / "hydra"
    place.symlink_to(tmp_path / "elsewhere") if link else (tmp_path / "elsewhere").rename(place)
    with pytest.raises(BadInput, match="mine/hydra: a folder of yours has no options for Hydra itself; take it out"):
        config.plan(["--config-dir", str(tmp_path / "mine"), "workload=gelu", "workload.rows=64"])


def test_what_others_link_to_is_bounded_too(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs.yaml").write_text(f"# @package _global_\n{laughs(10)}")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "experiment").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput, match="with its aliases written out it has more than 10000 values"):
        config.plan(["--config-dir", str(tmp_path / "mine"), "+experiment=theirs"])


def laughs(levels):
    return "\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (laughs(10), "with its aliases written out it has more than 10000 values"),
        ("a: " + "[" * 200 + "]" * 200, "it is nested deeper than 50"),
        ("a: &a [*a]", "with its aliases written out it has more than"),
        ("a: " + "x" * 2**20, "a config of more than 1048576 bytes is not read"),
    ],
)
def test_a_yaml_that_would_grow_is_not_read(theirs, text, why):
    with pytest.raises(BadInput, match=why):
        config.plan(theirs(text))


def test_what_is_no_file_is_passed_over(theirs, tmp_path):
    """An editor's lock, and a folder that is called as a file is."""
    words = theirs("workload:\n  rows: 8\n")
    (tmp_path / "experiment" / ".#theirs.yaml").symlink_to("user@machine.1234:5678")
    (tmp_path / "folder.yaml").mkdir()
    assert len(config.plan(words).cases) == 1


def test_what_cannot_be_read_is_named(theirs, tmp_path, monkeypatch):
    theirs("workload:\n  rows: 8\n")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")  # which root never sees

    monkeypatch.setattr(trust.Path, "read_text", refuse)
    with pytest.raises(BadInput, match=r"theirs\.yaml: it cannot be read \(Permission denied\)"):
        trust.check_folder(tmp_path)


def test_anchors_within_reason_are_read(theirs):
    text = "defaults:\n  - override /workload: gelu\naxes:\n  workload.cols: &sizes [8, 16]\n  workload.rows: *sizes\n"
    assert len(config.plan([*theirs(text), "-m"]).cases) == 4

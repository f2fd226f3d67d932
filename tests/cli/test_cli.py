"""The front door, in this process: what is said when nothing has begun."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from runner import __version__, cli
from runner.cli import version
from runner.device.gpus import Gpu
from runner.device.processes import environment
from runner.records.options import option_names, option_summaries

COMMANDS = sorted({*option_names("cli")} - {"run", "help"})  # whose help is that of a run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "workload=gelu"], "runner: stopped\n"),
        (["doctor"], "runner: stopped\n"),
        (["run", "workload=gelu"], "runner: stopped; every case that was done is in the journal\n"),
        (["workload=gelu"], "runner: stopped; every case that was done is in the journal\n"),
    ],
)
def test_an_interrupt_while_it_is_still_importing_is_one_line(words, said, monkeypatch, capsys):
    def interrupted(*names):
        raise KeyboardInterrupt

    def covered(*names):  # as classes that are just being made do, and contexts that are left
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("cannot be made")  # noqa: B904

    for import_module in (interrupted, covered):
        monkeypatch.setattr(cli, "import_module", import_module)
        assert cli.main(words) == 130
        assert capsys.readouterr().err == said


def test_what_is_no_interrupt_is_raised(monkeypatch):
    monkeypatch.setattr(cli, "import_module", lambda *names: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["run"])


def test_alone_it_says_what_to_type(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    commands = [line for line in printed.splitlines() if line.startswith("  python -m runner ")]
    assert len(commands) == 10
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith(printed)


@pytest.mark.parametrize(
    ("output", "said"),
    [(">&-", ""), ("> /dev/full", "runner: cannot write the output: No space left on device\n")],
)
def test_a_closed_or_full_output_is_no_traceback(output, said):
    words = ["bash", "-c", f"{sys.executable} -m runner version {output}"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1 if said else 0, said)


def test_nothing_that_takes_time_is_imported_before_an_interrupt_is_told():
    probe = "import sys, runner.cli; print([name for name in sys.modules if name.startswith('runner')])"
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "['runner', 'runner.cli']\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", [*COMMANDS, "report html", "report wandb"])
def test_the_help_of_every_sub_command_has_the_same_form(command, flag, capsys):
    """Usage, one sentence, details, arguments, options, examples; as by ``--help``, so by ``-h``."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), flag])
    assert ended.value.code == 0
    usage, sentence, *parts = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"usage: runner {command} ")
    assert usage.endswith(" [options]")
    assert sentence.endswith(".")
    headings = [part.partition("\n")[0] for part in parts if part.partition("\n")[0].endswith(":")]
    assert headings == [name for name in ("arguments:", "options:", "examples:") if name in headings]
    assert "options:" in headings
    if command in COMMANDS:
        assert sentence == option_summaries("cli")[command]
        assert f"  python -m runner {command}" in parts[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "outputdir=x"], "outputdir: not an argument of list; did you mean output_dir=? One of: "),
        (["compare", "a", "b", "sort=x"], "sort: not an argument of compare; "),
        (["report", "md", "output=x"], "output: not an argument of report md; did you mean --output? One of: "),
        (
            ["gate", "--baseline", "a", "b", "output_di=x"],
            "output_di: not an argument of gate --baseline; did you mean ",
        ),
        (["version", "x"], "x: not an argument of version; one of: --help"),
        (["doctor", "x=y"], "x: not an argument of doctor; one of: --help"),
    ],
)
def test_an_unknown_word_is_one_sentence_with_the_nearest_name(words, said, capsys):
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"runner: {said}")
    assert error.count("\n") == 1


def test_last_is_the_newest_run_under_output_dir_in_every_command(made, tmp_path, capsys):
    for day in ("2025-01-30", "2025-01-31"):
        folder = made.finished(tmp_path / day / "10-11-12-both", made.sweep())
    where = f"output_dir={tmp_path}"
    for command, *rest in (["show", "last"], ["report", "md", "last"], ["compare", "last", "--by", "cols"]):
        written = [tmp_path / "by_last.md", tmp_path / "by_name.md"]
        named = [str(folder) if word == "last" else word for word in rest]
        assert cli.main([command, *rest, where, "--output", str(written[0])]) == 0
        assert cli.main([command, *named, "--output", str(written[1])]) == 0
        assert written[0].read_text() == written[1].read_text()
    older = str(tmp_path / "2025-01-30" / folder.name)
    capsys.readouterr()
    assert cli.main(["gate", "--baseline", older, "last", where]) in (0, 3)
    assert str(folder) in capsys.readouterr().out


def test_a_command_is_a_file_and_nothing_else_lists_it(tmp_path, monkeypatch, capsys):
    """It is found by the help and by completion, and runs, without any edit elsewhere."""
    (tmp_path / "greet.py").write_text(
        '"""Print a greeting."""\n\ndef main(argv):\n    print("hello", *argv)\n    return 0\n'
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    assert cli.main(["--help"]) == 0
    assert "\n  greet     Print a greeting.\n" in capsys.readouterr().out
    monkeypatch.setenv("COMP_LINE", "runner gr")
    assert cli.main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out == "greet\n"
    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"


def test_run_may_be_written_or_left_out(capsys):
    for words in (["--cfg", "job", "workload=mlp"], ["-m", "plan=1"], ["--bogus"], ["--help", "workload=mlp"]):
        answers = []
        for before in ([], ["run"]):
            try:
                code = cli.main([*before, *words])
            except SystemExit as end:  # Hydra has answered
                code = end.code
            answers.append((code, *capsys.readouterr()))
        assert answers[0] == answers[1]


def test_version_prints_what_a_bug_report_needs_and_imports_no_torch():
    probe = (
        "import sys; from runner.cli import main; code = main(['version']); sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True)
    versions = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("torch's"))
    assert versions["kernel-runner"] == __version__
    assert {name: versions[name] for name in ("torch", "hydra-core", "omegaconf")} == {
        name: metadata.version(name) for name in ("torch", "hydra-core", "omegaconf")
    }
    assert {"python", "triton", "wandb", "system", "driver", "GPUs"} <= versions.keys()


def test_the_cuda_of_torch_is_read_from_its_file(capsys):
    import torch

    assert cli.main(["version"]) == 0
    assert f"torch's CUDA   {torch.version.cuda or 'none'}\n" in capsys.readouterr().out


def test_version_names_the_gpus_that_a_program_sees(monkeypatch, capsys):
    monkeypatch.setattr(version, "driver", lambda: "580.1")
    monkeypatch.setattr(version.gpus, "visible", lambda: [Gpu(n, f"GPU-{n}", "NVIDIA H200", 0, 0) for n in (0, 1)])
    assert cli.main(["version"]) == 0
    assert "driver         580.1\nGPUs           NVIDIA H200, NVIDIA H200\n" in capsys.readouterr().out

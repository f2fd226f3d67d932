"""``bench(...).save()``: a run that every command reads."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial

import pytest
import torch

from runner import bench, cli, load
from runner.api.rows import described, source_file
from runner.findings.past import read_run

X = torch.linspace(-3, 3, 60).reshape(6, 10)


def softmax(x):
    return torch.softmax(x, -1)


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """``command("show", folder)``: the exit code of a command and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main([*map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def compared(clock):
    """A comparison in which ``mine`` takes 30 us, or as long as is said."""

    def run(us: float = 30.0):
        functions = {"mine": clock.takes(us, softmax), "torch": clock.takes(60.0, softmax), "wrong": torch.exp}
        return bench(functions, X, check=softmax)

    return run


def test_a_saved_comparison_is_read_as_it_was(compared, tmp_path):
    result = compared()
    folder = result.save("softmax", tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-softmax", str(folder.relative_to(tmp_path)))
    run = read_run(folder)
    assert (run.plan.name, run.plan.baseline, run.unreadable, run.devices) == ("softmax", "torch", 0, "cpu")
    for line, was in zip(run.lines, result.lines, strict=True):
        for column in ("time_us", "speedup", "speedup_low", "vs_baseline", "fastest", "paired", "correct", "verdict"):
            assert line.value(column) == was.value(column)
    assert [row.status for row in run.rows] == ["ok", "ok", "wrong"]
    assert {(row.case.workload.name, row.case.workload.fields["args"]) for row in run.rows} == {
        ("softmax", "6x10 float32")
    }
    assert run.environment["packages"]["torch"] == torch.__version__
    assert run.environment["worker"]["cpu_threads"] == torch.get_num_threads()
    assert {path.name for path in folder.iterdir()} >= {"rows.csv", "table.md"}
    table = load(folder)
    assert list(table["implementation"]) == ["mine", "torch", "wrong"]


def test_every_command_reads_saved_runs(compared, command, tmp_path):
    first, other = (compared(us).save("softmax", tmp_path / "outputs") for us in (30.0, 45.0))
    code, shown = command("show", first)
    assert code == 0
    assert "★ mine" in shown
    assert "softmax: args=6x10 float32" in shown
    assert "measure.benchmark" not in shown
    code, said = command("compare", first, other)
    assert re.search(r"mine +30 us +45 us +1.5", said)
    assert "3 cases\n" in said
    alone = bench(softmax, X).save("alone", tmp_path / "outputs")
    code, said = command("compare", first, alone)
    assert "1 case\n" in said
    assert "runs of bench have cases in common if save() got the same name" in said
    code, said = command("gate", "--baseline", first, other)
    assert "softmax mine: +50.0 %" in said
    assert "one call of bench" in said
    assert "--against" not in said
    code, said = command("list")
    assert len(re.findall(r"softmax +cpu .* 3 +1 ", said)) == 2
    code, said = command("history", "impl=mine")
    assert "softmax mine on " in said
    assert re.search(r"30 us[\s\S]*45 us", said)
    for refused in (["plan", f"resume={first}"], ["resume=last"]):
        code, said = command(*refused)
        assert (code, said.count("\n")) == (2, 1)
        assert "a program has saved it (runner.bench), so run the program again" in said


def test_the_page_names_no_command_that_would_not_run(compared, command, tmp_path):
    pytest.importorskip("vl_convert")
    folder = compared().save("softmax", tmp_path)
    assert command("report", "html", folder, "--output", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "workload=softmax" not in page
    assert "bench(...) in a program" in page


def test_a_sweep_a_time_and_gradients_are_other_problems(clock, tmp_path):
    sweep = bench(softmax, make=lambda n: torch.randn(n, 8), sizes=[2, 4])
    fields = [row.case.workload.fields for row in read_run(sweep.save("s", tmp_path)).rows]
    assert fields == [{"n": 2}, {"n": 4}]
    one = bench(torch.softmax, X, -1).save(output_dir=tmp_path)
    (row,) = read_run(one).rows
    assert (row.case.workload.name, row.case.workload.fields) == ("bench", {"args": "6x10 float32, -1"})
    (both,) = read_run(bench(softmax, X, grad=True).save(output_dir=tmp_path)).rows
    assert both.case.workload.fields == {"args": "6x10 float32", "grad": True}
    assert len({row.case.key, both.case.key}) == 2


def test_arguments_are_described_by_shapes_types_numbers_and_words():
    linear = torch.nn.Linear(2, 2)
    args = (X, 3, "mean", None, [X[0], torch.tensor(1)], {"k": X}, linear, X.numpy())
    text = "6x10 float32, 3, mean, None, [10 float32, scalar int64], [k: 6x10 float32], Linear, 6x10 float32"
    assert described(args) == text
    assert described(()) == "call"
    assert len(described([X] * 50)) < 130
    assert described([X] * 50) != described([X] * 51)


def test_rows_have_the_commit_and_the_digest_of_the_functions_file(tmp_path, brief):
    (tmp_path / "mine.py").write_text("import torch\nimport beside\n\ndef f(x):\n    return x + 1\n")
    (tmp_path / "beside.py").write_text("n = 1\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["beside"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["beside"]
    timing = bench(module.f, X)
    (row,) = read_run(timing.save(output_dir=tmp_path / "o")).rows
    assert row.metrics["dirty"] is False
    assert len(row.metrics["commit"]) == 40
    names = {name.rpartition("/")[2] for name in row.fingerprint}
    assert {"mine.py", "beside.py", "torch", "python"} <= names
    (tmp_path / "mine.py").write_text("def f(x):\n    return x + 2\n")
    (later,) = read_run(timing.save(output_dir=tmp_path / "o")).rows
    assert later.metrics["dirty"] is True
    assert "edited" in next(text for name, text in later.fingerprint.items() if name.endswith("mine.py"))


def test_the_file_of_a_function_is_the_users():
    assert source_file(softmax) == source_file(partial(partial(softmax))) == __file__
    assert source_file(torch.nn.functional.gelu) == source_file(torch.softmax) == source_file(json.dumps) == ""
    assert source_file(torch.nn.Linear(1, 1)) == ""

    class Mine(torch.nn.Module):
        pass

    assert source_file(Mine()) == __file__


def test_a_name_that_is_no_folder_and_a_folder_that_cannot_be_made_are_errors(clock, tmp_path):
    timing = bench(softmax, X)
    with pytest.raises(ValueError, match="name='a/b': it names a folder"):
        timing.save("a/b", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        timing.save(output_dir=tmp_path / "file")


def test_without_its_packages_one_sentence_says_how_to_get_them(clock, monkeypatch, tmp_path):
    timing = bench(softmax, X)
    for name in [name for name in sys.modules if name.startswith("kernel_runner.store")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "orjson", None)
    with pytest.raises(ModuleNotFoundError, match=r"a saved run needs orjson; pip install 'kernel-runner\[cli\]'"):
        timing.save(output_dir=tmp_path)

"""A user's mistake: one clear line on stderr, exit 2, nothing started."""

from __future__ import annotations

import pytest

from runner.cli import main

MISTAKES = {
    "an unknown workload, with the nearest match": (
        ["workload=mpl"],
        "workload=mpl: no such option; did you mean mlp? One of: ",
    ),
    "a name that is no UTF-8": (
        ["impl=file", "impl.path=caf\udce9.py:f"],
        r"'impl.path=caf\udce9.py:f' is not UTF-8; rename the file that it names, or set a UTF-8 locale",
    ),
    "an unknown implementation": (
        ["impl=tritn"],
        "impl=tritn: no such option; did you mean triton? One of: ",
    ),
    "an unknown measurement": (
        ["measure=benchmrk"],
        "measure=benchmrk: no such option; did you mean benchmark? One of: benchmark, by_hand, inspect, ",
    ),
    "an unknown measurement in a list": (
        ["measure=[benchmark,profle]"],
        "measure=profle: no such option; did you mean profile? One of: benchmark, by_hand, inspect, ",
    ),
    "a field of a measurement that was not chosen": (
        ["measure.ncu.set=full"],
        "measure.ncu: not chosen; name it, as in 'measure=[benchmark,ncu]'",
    ),
    "an unknown field": (
        ["workload=matmul", "workload.sizee=3"],
        "sizee: no such field; did you mean size? One of: axes, data, dtype, k, layout, m, n, name, shape, size, tf32",
    ),
    "an unknown field added with +": (
        ["workload=gelu", "+workload.row=3"],
        "workload.row: no such field; did you mean rows? One of: cols, data, dtype, form, layout, pass, rows, tf32",
    ),
    "an unknown field of a group": (
        ["log=wandb", "log.wandb.projct=3"],
        "log.wandb.projct: no such field; did you mean project? One of: ",
    ),
    "an unknown top-level field": (["sed=3"], "sed: no such field; did you mean seed? One of: "),
    "a negative size": (
        ["workload=matmul", "workload.size=-4"],
        "workload.size: -4 is not allowed; give a whole number of at least 1",
    ),
    "a size of zero": (
        ["workload=softmax", "workload.rows=0"],
        "workload.rows: 0 is not allowed; give a whole number of at least 1",
    ),
    "a size that is no number": (
        ["workload=softmax", "workload.rows=many"],
        "workload.rows: 'many' is not allowed; give a whole number of at least 1",
    ),
    "a bad size deep inside a sweep": (
        ["workload=softmax", "workload.rows=4,8,-1", "-m"],
        "workload.rows: -1 is not allowed; give a whole number of at least 1",
    ),
    "a dtype typo": (
        ["workload.dtype=float23"],
        "workload.dtype: 'float23' is not allowed; did you mean float32? One of: bfloat16, float16, float32, float64",
    ),
    "an empty sweep": (
        ["workload.cols=range(5,1)", "-m"],
        "workload.cols=range(5,1): this axis of the sweep is empty; give it at least one value",
    ),
    "a glob that matches nothing": (
        ["impl=glob(zz*)", "-m"],
        "impl=glob(zz*): this axis of the sweep is empty; give it at least one value",
    ),
    "a sweep without -m": (
        ["impl=naive,torch"],
        "impl=naive,torch: several values make a sweep; add -m",
    ),
    "an experiment's sweep without -m": (
        ["+experiment=compare_gelu", "impl=torch"],
        "axes: workload.dtype: a sweep; add -m (or axes=null for one case)",
    ),
    "impl=file without a path": (
        ["impl=file"],
        "impl.path: missing; name a function, as in impl.path=my_softmax.py:softmax",
    ),
    "a path to no file": (["impl=file", "impl.path=nope.py:f"], "impl.path: there is no file nope.py; give a path"),
    "a path to no function": (
        ["impl=file", "impl.path=nope.py"],
        "impl.path: 'nope.py' names no function; give one, as in impl.path=nope.py:softmax",
    ),
    "a function as Python names it": (
        ["impl=file", "impl.path=torch.special.softmax"],
        "impl.path: 'torch.special.softmax' names no function; give one, as in impl.path=torch.special:softmax",
    ),
    "a solution with its sources as text": (
        ["impl=file", "impl.path=solution.json"],
        "impl.path: 'solution.json' names no function; give one, as in impl.path=solution.json:run",
    ),
    "a compile mode that is none": (
        ["impl=compiled", "impl.mode=fast"],
        "impl.mode: 'fast' is not allowed; one of: default, max-autotune, ",
    ),
    "compiled of compiled": (
        ["impl=compiled", "impl.of=compiled"],
        "impl.of: no implementation 'compiled' to wrap; one of: ",
    ),
    "compiled of nothing known": (
        ["impl=compiled", "impl.of=tritn"],
        "impl.of: no implementation 'tritn' to wrap; did you mean triton? One of: ",
    ),
    "a field that no option of a sweep has": (
        ["workload=gelu,matmul", "workload.zize=8", "-m"],
        "workload.zize: no such field; did you mean size? One of: ",
    ),
    "a word that is no override": (
        ["gelu"],
        "gelu: not an override; write group=option or field=value, as in workload=gelu",
    ),
    "an experiment without +": (["experiment=demo"], "experiment: nothing to override; add it, as in +experiment=..."),
    "null where a number belongs": (
        ["measure.benchmark.max_s=null"],
        "measure.benchmark.max_s: null is not allowed; give a number above 0",
    ),
    "a baseline outside the sweep": (["baseline=naive"], "baseline=naive: not in this sweep; one of: torch"),
    "a variant outside the sweep": (
        ["impl=compiled", "impl.of=naive,torch", "baseline=compiled(of=triton)", "-m"],
        "baseline=compiled(of=triton): not in this sweep; did you mean compiled(of=torch)? "
        "One of: compiled(of=naive), compiled(of=torch)",
    ),
    "a name that cannot name a folder": (["name=a/b"], "name: it names a folder, so give letters, digits"),
    "no workload": (["~workload"], "workload: no option chosen; type workload=<option>"),
    "no measurement": (["measure=[]"], "measure: nothing to observe; choose at least one, as in measure=benchmark"),
    "an interpolation to nothing": (["workload.rows=${nope}"], "Interpolation key 'nope' not found"),
    "a broken list": (["workload.cols=[1,2"], "workload.cols=[1,2: cannot be parsed; close its brackets, or quote"),
    "letters that want quotes": (
        ["output_dir=/tmp/été"],
        "output_dir=/tmp/été: cannot be parsed; quote the value within quotes: \"output_dir='/tmp/été'\"",
    ),
    "a sweep of words": (["workload.cols=range(a,b)", "-m"], "workload.cols=range(a,b): mismatch type argument start"),
    "a sweep without end": (
        ["workload.cols=interval(1,9)", "-m"],
        "workload.cols=interval(1,9): not a finite list of values; give one, as in range(256,1025,256)",
    ),
    "too few samples": (
        ["measure.benchmark.samples=3"],
        "measure.benchmark.samples: 3 is not allowed; give a whole number of at least 20",
    ),
    "a number for a group": (["workload=3"], "workload=3: workload takes the name of an option; one of: adamw, add, "),
}


@pytest.mark.parametrize(("arguments", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_one_line_exit_2_nothing_started(capsys, monkeypatch, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert main([f"output_dir={tmp_path / 'outputs'}", "log=none", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("runner: ")
    assert line in err
    assert err.count("\n") == 1
    assert out == ""
    assert not any(tmp_path.iterdir())


def test_a_process_of_its_own_prints_the_same_line(run):
    arguments, line = MISTAKES["a name that is no UTF-8"]
    result = run(*arguments)
    assert (result.code, result.out, result.folder) == (2, "", None)
    assert result.err == f"runner: {line}\n"


def test_an_output_dir_that_cannot_be_written_is_named(run, tmp_path):
    (tmp_path / "outputs").write_text("in the way")
    result = run("workload.rows=8", "workload.cols=8")
    assert result.code == 2
    assert "cannot write there" in result.err
    assert result.err.count("\n") == 1


def test_broken_yaml_is_named_with_its_line(run, tmp_path):
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    (tmp_path / "mine" / "workload" / "broken.yaml").write_text("name: gelu\nrows: [1, 2\n")
    result = run("--config-dir", str(tmp_path / "mine"), "workload=broken")
    assert result.code == 2
    assert "broken.yaml, line 3: not valid YAML" in result.err


@pytest.mark.parametrize(("flag", "why"), [("--bogus", "--bogus: no such flag"), ("--cfg", "argument --cfg")])
def test_an_unknown_flag_is_one_line(run, flag, why):
    result = run(flag)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(f"runner: {why}")

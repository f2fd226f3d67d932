"""A mistake on the command line is reported in one line that says what to type. tests/e2e tests whole commands."""

from __future__ import annotations

import sys

import pytest

from runner import config
from runner.cli import help
from runner.config import composer
from runner.device.processes import ROOT
from runner.records.bad_input import BadInput
from runner.records.options import CONF

ROWS = sorted(path.stem for path in CONF.glob("workload/*.yaml") if "\nrows:" in path.read_text())  # who has them

MISTAKES = {
    "a field of the benchmark without it": (
        ["measure=[profile]", "measure.benchmark.max_s=0.05"],
        "measure.benchmark: not chosen; name it, as in 'measure=[benchmark,profile]'",
    ),
    "an axis that no option has": (
        ["axes={workload.colz:[1,2]}", "-m"],
        "workload.colz: no such field; did you mean cols? One of: ",
    ),
    "an axis without its group": (
        ["axes={cols:[8]}", "-m"],
        "cols: no such field; did you mean workload.cols?",
    ),
    "a sweep of the default axis": (
        ["workload=softmax", "workload.axes.cols=128,256", "-m"],
        "workload.axes.cols=128,256: to sweep a field: workload.cols=128,256 -m",
    ),
    "a field that is a default axis too": (
        ["workload=softmax", "cols=128"],
        "cols: no such field; did you mean workload.cols?",
    ),
    "a list with a space": (
        ["measure=[benchmark,", "profile]"],
        "measure=[benchmark, profile]: a value has no spaces; write 'measure=[benchmark,profile]'",
    ),
    "a list without commas": (
        ["measure=[benchmark", "profile]"],
        "measure=[benchmark profile]: a value has no spaces; write 'measure=[benchmark,profile]'",
    ),
    "a sweep with a space": (
        ["impl=naive,", "torch", "-m"],
        "impl=naive, torch: a value has no spaces; write impl=naive,torch",
    ),
    "columns with a space before the comma": (
        ["columns=time_us", ",", "speedup", "seed=1"],
        "columns=time_us , speedup: a value has no spaces; write columns=time_us,speedup",
    ),
    "an option as a flag": (
        ["--workload", "gelu"],
        "--workload: options and fields have no dashes; write workload=gelu",
    ),
    "a field as a flag": (
        ["--workload.rows=3", "-m"],
        "--workload.rows=3: options and fields have no dashes; write workload.rows=3",
    ),
    "a flag that there is not": (
        ["--quiet"],
        "--quiet: no such flag; a field is written workload.quiet=...; python -m runner --help lists what may be given",
    ),
    "all options": (["impl=*", "-m"], "impl=*: no such option; for all of them write 'impl=glob(*)' -m"),
    "a mode of PyTorch": (["workload=gelu", "impl=eager"], "impl=eager: no such option; did you mean torch? One of: "),
    "a field with a plus": (["+device=cpu"], "device: it is there already; leave out the +, as in device=..."),
    "a path to nothing": (["workload=tasks/mine", "impl=bespoke"], "workload=tasks/mine: No such file or directory: "),
    "a format with a path to nothing": (
        ["workload=popcorn", "workload.path=mine"],
        "workload=mine: No such file or directory: give a path that exists, seen from ",
    ),
    "a CUDA file as a workload": (
        ["workload=k.cu"],
        "workload=k.cu: give a Python file that launches it by cuda_kernel (docs/cuda-files.md)",
    ),
    "a column that there is not": (
        ["columns=time_ms"],
        "columns: no such column 'time_ms'; did you mean time_us? docs/columns.md lists them all",
    ),
    "a part of the names of columns": (
        ["columns=peak_mem"],
        "columns: no such column 'peak_mem'; did you mean peak_mem_bytes",
    ),
    "a word within columns": (
        ["columns=peak"],
        "columns: no such column 'peak'; did you mean pct_of_measured_peak or ",
    ),
    "a range longer than memory": (
        ["seed=range(1000000000)", "-m"],
        "seed=range(1000000000): 1,000,000,000 cases; a run takes at most 100,000, so give fewer values",
    ),
    "a range without end": (["seed=range(0,inf)", "-m"], "seed=range(0,inf): not a finite list of values; give one"),
    "a product of axes": (
        ["seed=range(1000)", "workload.rows=range(1,1000)", "workload.cols=8", "-m"],
        "this sweep: 999,000 cases; a run takes at most 100,000, so give fewer values",
    ),
    "too many replicas": (
        ["replicas=200000"],
        "replicas=200000: 200,000 cases; a run takes at most 100,000, so give fewer values",
    ),
    "a size of words": (
        ["workload.rows=4kb"],
        "workload.rows: '4kb' is not allowed; give a whole number of at least 1",
    ),
    "a size that is too large": (
        ["workload.rows=2**99"],
        "workload.rows: '2**99' is not allowed; give a whole number of at least 1",
    ),
    "a GPU by another name": (
        ["device=gpu"],
        "device: 'gpu' is not allowed; did you mean cuda? One of: auto, cpu, cuda",
    ),
    "a type by its short name": (
        ["workload.dtype=bf16"],
        "workload.dtype: 'bf16' is not allowed; did you mean bfloat16? One of: ",
    ),
    "a comma too many": (
        ["impl=torch,naive,", "-m"],
        "impl=torch,naive,: there is nothing before or after a comma; remove that comma",
    ),
    "a file that is no Python": (
        ["impl=file", f"impl.path={ROOT}/README.md:softmax"],
        f"impl.path: {ROOT}/README.md is not a Python file; write impl.path=my_softmax.py:softmax",
    ),
    "a folder without a suffix": (["impl=file", "impl.path=/tmp:f"], "impl.path: /tmp is not a Python file; write"),
    "a column that is a mapping": (
        ["columns={a:1}"],
        "columns: no such column {'a': 1}; docs/columns.md lists them all",
    ),
    "a column that is a list": (["columns=[[gpu_us]]"], "columns: no such column ['gpu_us']; "),
    "a seed that no generator takes": (
        ["seed=99999999999999999999"],
        "seed: 99999999999999999999 is not allowed; give at most 18446744073709551615",
    ),
    "a folder as Hydra has it": (
        ["hydra.run.dir=here"],
        "hydra.run.dir: not used here; output_dir= and name= give the run's folder, -m makes a sweep, "
        "--config-dir adds YAML files",
    ),
    "a folder of a sweep as Hydra has it": (["hydra.sweep.dir=here", "-m"], "hydra.sweep.dir: not used here; "),
    "a name as Hydra has it": (["hydra.job.name=mine"], "hydra.job.name: not used here; output_dir= and name= give "),
    "a field of another workload": (
        ["workload.print_loss=true"],
        "workload.print_loss: workload=gelu has no such field; mlp has: workload=mlp",
    ),
    "a field of several other workloads": (
        ["workload=mlp", "workload.rows=3"],
        f"workload.rows: workload=mlp has no such field; {', '.join(ROWS)} have: "
        f"workload={ROWS[0]} or workload={ROWS[1]}",
    ),
    "a field of a workload that is not of the sweep": (
        ["workload=gelu,softmax", "workload.print_loss=true", "-m"],
        "workload.print_loss: workload=softmax has no such field; mlp has: workload=mlp",
    ),
    "the path of a function without impl=file": (
        ["impl.path=x.py:f"],
        "impl.path: impl=torch has no such field; file has: impl=file",
    ),
    "what is to be compiled without impl=compiled": (
        ["impl=torch", "impl.of=naive"],
        "impl.of: impl=torch has no such field; compiled, cudagraph have: impl=compiled",
    ),
    "arguments that are given together": (
        ["workload=matmul", "impl=torch,cudagraph", "impl.args={BLOCK_M:64,BLOCK_N:8},{BLOCK_M:8,BLOCK_N:64}", "-m"],
        "impl.args.BLOCK_M: impl=torch,cudagraph takes no such argument; triton has it: impl=triton",
    ),
    "a file as an implementation": (
        ["workload=gelu", "impl=torch,mine/k.py:f", "-m"],
        "impl=mine/k.py:f: write impl=file impl.path=mine/k.py:f",
    ),
    "a CUDA file as an implementation": (
        ["workload=gelu", "impl=k.cu:f"],
        "impl=k.cu:f: write impl=file impl.path=k.py:f, a Python file that launches it by cuda_kernel (docs/cuda-files",
    ),
    "no logger beside one": (
        ["workload=gelu", "log=wandb,none"],
        "log=none: it turns off all loggers; write it alone, or leave it out",
    ),
    "equal values of a sweep": (
        ["workload=gelu", "seed=0,1,0", "-m"],
        "seed=0,1,0: seed=0 is given 2 times, and equal cases are measured once; to measure each case again: replicas",
    ),
    "a number of more than 64 bits": (
        ["workload=gelu", f"measure.benchmark.samples={10**30}"],
        f"measure.benchmark.samples: {10**30} is not allowed; give at most 18446744073709551615",
    ),
    "a field of a logger that is off": (
        ["log=none", "log.wandb.project=mine"],
        "log.wandb: not chosen; name it, as in 'log=[wandb]'",
    ),
    "a field without its group": (["rows=3"], "rows: no such field; did you mean workload.rows?"),
    "a field without its measurement": (
        ["measure.max_s=3"],
        "measure.max_s: no such field; did you mean measure.benchmark.max_s?",
    ),
    "a field of another measurement": (
        ["measure.benchmark.set=full"],
        "measure.benchmark.set: no such field; did you mean measure.ncu.set, of measure=ncu?",
    ),
    "a field of another workload without its group": (
        ["print_loss=true"],
        "print_loss: no such field; did you mean workload.print_loss, of workload=mlp?",
    ),
    "a field of the run under a group": (["workload.seed=3"], "workload.seed: no such field; did you mean seed?"),
    "a word that is as far from axes as layers is": (
        ["workload.max=3"],
        "workload.max: no such field; one of: axes, cols, ",
    ),
    "axes by a letter": (["workload.axs=3"], "workload.axs: no such field; did you mean axes? One of: "),
    "a list for a size": (
        ["workload.cols=[64, 128]", "-m"],
        "workload.cols=[64, 128]: takes one value; to sweep: workload.cols=64,128 -m",
    ),
    "a list for a field that one of two workloads has": (
        ["workload=gelu,mlp", "workload.layers=[2,3]", "-m"],
        "workload.layers=[2,3]: takes one value; to sweep: workload.layers=2,3 -m",
    ),
    "a shape beside one of its sizes": (
        ["workload.shape=[64,128]", "workload.cols=3"],
        "workload.cols=3: a shape gives workload.rows, workload.cols; give the shape or the sizes",
    ),
    "a shape beside the size that sets its sizes": (
        ["workload=matmul", "workload.shape=[8,8,4]", "workload.size=3"],
        "workload.size=3: a shape gives workload.m, workload.k, workload.n; give the shape or the sizes",
    ),
    "a shape of another length": (
        ["workload=gelu,matmul", "workload.shape=[64,128]", "-m"],
        "workload.shape=[64,128]: a shape of workload=matmul has 3 sizes: [m,k,n]",
    ),
    "a list of shapes": (
        ["workload.shape=[[64,128],[8,9]]", "-m"],
        "workload.shape=[[64,128],[8,9]]: takes one shape; to sweep: workload.shape=[64,128],[8,9] -m",
    ),
    "several shapes without -m": (
        ["workload.shape=[64,128],[8,9]"],
        "workload.shape=[64,128],[8,9]: several values make a sweep; add -m",
    ),
    "a set of several shapes without -m": (
        ["workload=softmax", "+shapes=gpt2"],
        "+shapes=gpt2: 2 shapes make a sweep; add -m",
    ),
    "a shape beside a set of shapes": (
        ["+shapes=gpt2", "workload.shape=[64,128]"],
        "workload.shape=[64,128]: +shapes=gpt2 gives the shapes; give one of the two",
    ),
    "a set without shapes for the workload": (
        ["workload=cdist", "+shapes=gpt2", "-m"],
        "+shapes=gpt2: no shapes for workload=cdist; it has some for matmul, gelu, softmax",
    ),
    "an experiment that there is not": (
        ["+experiment=compare_gel", "-m"],
        "experiment=compare_gel: no such option; did you mean compare_gelu? ",
    ),
    "a set that there is not": (["+shapes=llama3", "-m"], "shapes=llama3: no such option; did you mean llama3_8b? "),
    "a list for what a run has one of": (
        ["replicas=[1,2]", "-m"],
        "replicas: [1,2] is not allowed; give a whole number of at least 1",
    ),
    "nearly a sub-command": (
        ["doctr"],
        "doctr: not an override; did you mean the sub-command doctor, as in python -m runner doctor?",
    ),
    "a mode as Hydra has it": (["hydra.mode=RUN"], "hydra.mode: not used here; "),
    "a sweeper as Hydra has it": (["hydra/sweeper=basic"], "hydra/sweeper: not used here; "),
    "a search path as Hydra has it": (["hydra.searchpath=[here]"], "hydra.searchpath: not used here; "),
    "a time that is none": (
        ["measure.benchmark.max_s=inf"],
        "measure.benchmark.max_s: inf is not allowed; give a finite number above 0",
    ),
    "a field of a config that is only shown": (
        ["workload.rows=abc", "--cfg", "job"],
        "workload.rows: 'abc' is not allowed; give a whole number of at least 1",
    ),
}


def test_help_expands_no_endless_range():
    with composer(["seed=range(1000000000)"]) as (compose, asked):
        with pytest.raises(BadInput, match=r"1,000,000,000 cases"):
            help.help_text(compose, asked.overrides)
        assert "seed=" in help.complete(compose, "runner seed=range(1000000000) se")


@pytest.mark.parametrize(("words", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(words, line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput) as refused:
        config.plan(words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("words", [["+experiment=compare_gelu"], ["workload=mlp", "workload.batch=8"]])
def test_a_config_that_is_valid_is_shown_as_hydra_has_it(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(SystemExit, match=r"^0$"):
        config.plan([*words, "--cfg", "job"])
    assert "default_axes: true" in capsys.readouterr().out


def test_a_config_with_a_shape_is_shown_with_its_sizes(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(SystemExit, match=r"^0$"):
        config.plan(["workload=gelu", "workload.shape=[17,19]", "--cfg", "job"])
    assert "rows: 17\n  cols: 19\n" in capsys.readouterr().out


def test_a_workload_without_an_order_of_sizes_and_a_yaml_with_a_plain_shape_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "plain.yaml").write_text("name: gelu\nrows: 3\n")
    (tmp_path / "workload" / "fixed.yaml").write_text("defaults: [gelu, _self_]\nshape: [3, 4]\n")
    with pytest.raises(BadInput, match=r"^workload.shape: workload=gelu has no shape; name its sizes in its YAML, as "):
        config.plan(["--config-dir", str(tmp_path), "workload=plain", "workload.shape=[3,4]"])
    with pytest.raises(BadInput, match=r"^workload.shape: \[3, 4\] does not name sizes of workload=gelu; a YAML gives"):
        config.plan(["--config-dir", str(tmp_path), "workload=fixed"])


def test_a_field_of_an_option_of_the_users_is_found(monkeypatch, tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "wide.yaml").write_text("name: wide\nmargin: 3\n")
    (tmp_path / "workload" / "broken.yaml").write_text("name: [")
    monkeypatch.setattr(sys, "argv", ["runner"])
    fields = "cols, data, dtype, form, layout, pass, rows, tf32"
    has = f"wide has: workload=wide; its fields: {fields}"
    with pytest.raises(BadInput, match=f"^workload.margin: workload=gelu has no such field; {has}$"):
        config.plan(["--config-dir", str(tmp_path), "workload.margin=3"])


def test_an_unknown_workload_comes_before_an_option_that_may_be_a_function_of_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput, match=r"^workload=sofmax: no such option; did you mean softmax\?"):
        config.plan(["workload=sofmax", "impl=bespoke"])
    (tmp_path / "level" / "1").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"^workload=level: no such option; workload=level/ takes the tasks in that"):
        config.plan(["workload=level", "impl=bespoke"])
    with pytest.raises(BadInput, match=r"^workload=level/1/: no task is there; "):
        config.plan(["workload=level/1", "impl=bespoke"])
    (tmp_path / "mine.py").touch()
    with pytest.raises(BadInput, match=r"^workload=mine: no such option; write workload=mine\.py for that file$"):
        config.plan(["workload=mine", "impl=bespoke"])


def test_the_implementations_of_the_typed_workloads_are_listed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput, match=r"^impl=bespoke: no such option; one of: compiled, copy, cuda, "):
        config.plan(["workload=gelu", "impl=bespoke"])
    with pytest.raises(BadInput, match=r"^impl=onlin: no such option; did you mean online\? One of: .*fft, file"):
        config.plan(["workload=conv2d,softmax", "impl=onlin", "-m"])


def test_a_list_where_one_belongs_is_taken(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    plan = config.plan(["columns=[time_us]", "workload.axes={cols:[8,16]}", "-m"])
    assert [case.workload.fields["cols"] for case in plan.cases] == [8, 16]


@pytest.mark.parametrize(
    "words",
    [
        ["workload.m=8", "workload.n=8", "workload.k=8"],
        ["workload.m=8", "workload.n=8", "workload.k=8", "workload.size=4,16"],
        ["workload.size=8,8"],
        ["workload.size=2**3,8", "workload.m=8"],
    ],
)
def test_equal_products_are_one_case_however_they_are_given(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (square,) = config.plan(["workload=matmul", "workload.size=8"]).cases
    assert config.plan(["workload=matmul", *words, "-m"]).cases == (square,)


def test_sizes_may_be_written_in_units_of_1024_and_as_powers(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    plan = config.plan(["workload=matmul", "workload.size=1k,2**11,4K,2M,1e3", "workload.k=1k", "-m"])
    assert [case.workload.fields["n"] for case in plan.cases] == [1024, 2048, 4096, 2 * 1024**2, 1000]
    assert {case.workload.fields["k"] for case in plan.cases} == {1024}


def test_a_home_directory_is_found_and_a_name_of_digits_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "k.py").write_text("def f(x): return x\n")
    words = ["workload=gelu", "impl=file", "impl.path=~/k.py:f,k.py:f", "output_dir=~/runs", "name=1_1", "-m"]
    monkeypatch.chdir(tmp_path)
    plan = config.plan(words)
    assert (plan.output_dir, plan.name) == (f"{tmp_path}/runs", "1_1")
    assert [*{case.impl.fields["path"]: 0 for case in plan.cases}] == [f"{tmp_path}/k.py:f", "k.py:f"]


@pytest.mark.parametrize("cfg", ["job", "all"])
def test_a_config_of_the_users_folder_is_shown(cfg, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nworkload:\n  rows: 17\n")
    with pytest.raises(SystemExit, match=r"^0$"):
        config.plan(["--config-dir", str(tmp_path), "+experiment=mine", "--cfg", cfg])
    assert "rows: 17" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: mine\n", "the first line of an experiment's YAML must be: # @package _global_"),
        ("defaults:\n  - override /workload: softmax\n", "the first line of an experiment's YAML must be"),
        ("# @package _global_\ndefaults:\n  - override workload: softmax\n", "write: override /<group>: <option>"),
        ("# @package _global_\ndefaults:\n  - workload: softmax\n", "write: override /workload: softmax"),
        ("# @package _global_\nlog: 3\n", "log: 3 is not allowed; give fields, as in log: {NAME: VALUE}"),
        ("# @package _global_\nworkload: softmax\n", "in the defaults write: override /workload: softmax"),
    ],
)
def test_what_an_experiment_needs_is_said(text, line, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(BadInput) as refused:
        config.plan(["--config-dir", str(tmp_path), "+experiment=mine", "-m"])
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("[" * 1100, "nested too deeply, or contains itself"),
        ("[" * 200 + "]" * 200, "nested too deeply, or contains itself"),
        ("[" * 5000, "nested too deeply, or contains itself"),
        ("&a [*a]", "nested too deeply, or contains itself"),
        ("\x01", "not valid YAML: unacceptable character #x0001: special characters are not allowed"),
        ("\udcff", "not valid YAML: 'utf-8' codec can't decode byte 0xff in position 6: invalid start byte"),
        ("!!int ''", "not valid YAML: string index out of range"),
        ("!!bool x", "not valid YAML: 'x'"),
        ("!!timestamp x", "not valid YAML: 'NoneType' object has no attribute 'groupdict'"),
    ],
)
def test_a_yaml_that_cannot_be_read_is_named_in_one_line(value, line, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "workload").mkdir()
    path = tmp_path / "workload" / "mine.yaml"
    path.write_text(f"rows: {value}\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(BadInput) as refused:
        config.plan(["--config-dir", str(tmp_path), "workload=mine"])
    assert str(refused.value) == f"{path}: {line}"


@pytest.mark.parametrize("value", ["&a [*a]", "!!bool x"])
def test_a_yaml_that_cannot_be_read_is_in_nobodys_way(value, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text(f"rows: {value}\n", encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"^workload.print_loss: workload=gelu has no such field; mlp has: workload=mlp;"
    ):
        config.plan(["--config-dir", str(tmp_path), "workload.print_loss=true"])  # reads the fields of all files


@pytest.mark.parametrize("measure", ["ncu", "inspect"])
def test_a_reference_that_is_not_in_the_grid_is_refused(measure, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    words = ["workload=gelu", "impl=naive,torch", f"measure=[benchmark,{measure}]", "-m"]
    with pytest.raises(
        BadInput, match=rf"^measure\.{measure}\.reference=triton: not in this sweep; one of: naive, torch$"
    ):
        config.plan([*words, f"measure.{measure}.reference=triton"])
    assert config.plan([*words, f"measure.{measure}.reference=torch"])


def test_a_value_that_is_nested_too_deeply_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner"])
    with pytest.raises(BadInput, match=r"^a value is nested too deeply, or contains itself$"):
        config.plan(["workload.rows=" + "[" * 2000 + "]" * 2000])


def test_a_key_with_a_newline_or_an_escape_code_is_shown_escaped(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text('name: gelu\n"a\\nb\\e[31m": 3\n')
    with pytest.raises(BadInput, match=r"^workload\.a\\nb\\x1b\[31m: no such field; one of: "):
        config.plan(["--config-dir", str(tmp_path), "workload=mine"])


@pytest.mark.parametrize("flags", [[], ["--cfg", "job"]], ids=" ".join)
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("measure: 3\n", "measure: 3 is not allowed; give fields, as in measure: {NAME: VALUE}"),
        ("resume: 3\n", "resume: 3 is not allowed; give fields, as in resume: {NAME: VALUE}"),
    ],
)
def test_a_node_of_fields_is_no_number(text, line, flags, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["runner"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    with pytest.raises(BadInput) as refused:
        config.plan(["--config-dir", str(tmp_path), "+experiment=mine", *flags])
    assert str(refused.value) == line

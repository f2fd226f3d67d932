"""Kinds of mistakes at the command line: each is one line, exit code 2, and says what to type instead."""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

from runner import cli
from runner.records.options import CONF

DRAWS = random.Random(int(os.environ.get("MISSPELT_SEED", "0")))  # used at collection alone: the order is fixed
RUN = "outputs/2025-01-31/10-11-12-both"
FILES = {"k.py": "def gelu(x, approximate='tanh'): ...\n", "empty.py": "", "d.json": "{}", "notes.txt": ""}

KINDS = {  # the words → the next step
    "brackets of Python": ("workload=gelu impl=(torch,naive) -m", "impl=torch,naive -m"),
    "braces": ("workload=gelu impl={torch,naive} -m", "impl=torch,naive -m"),
    "a list of workloads": ("workload=[gelu,softmax] -m", "workload=gelu,softmax -m"),
    "an open bracket": ("columns=[time_us", "close its brackets"),
    "two equals signs": ("workload==gelu", "write workload=gelu"),
    "a path with an equals sign": ("impl=file impl.path=lr=1/k.py:gelu", "\"impl.path='lr=1/k.py:gelu'\""),
    "a path with a space and an equals sign": (
        "'impl.path=my lr=1,2/k.py:f'",
        "\"impl.path='my lr=1,2/k.py:f'\"",
    ),
    "spaces around the equals sign": ("workload = gelu", "workload=..."),
    "a colon for the equals sign": ("workload:gelu", "as in workload=gelu"),
    "two words in one pair of quotes": ("'workload=gelu workload.rows=3'", "write workload=gelu workload.rows=3"),
    "a second option as a word": ("workload=gelu softmax -m", "workload=gelu,softmax"),
    "a second measurement as a word": ("measure=benchmark profile", "'measure=[benchmark,profile]'"),
    "a second column as a word": ("columns=time_us speedup", "columns=time_us,speedup"),
    "a field without a value": ("workload=gelu quick", "quick=..."),
    "a size with separators": ("workload.cols=64,000", "workload.cols=64000"),
    "a size as a fraction": ("workload.cols=1.5", "a whole number"),
    "a shape with crosses": ("workload=matmul workload.shape=64x64x64", "3 sizes: [m,k,n]"),
    "a type of torch": ("workload.dtype=torch.float32", "did you mean float32?"),
    "capitals": ("workload.dtype=BFloat16", "did you mean bfloat16?"),
    "yes": ("workload.tf32=yes", "true or false"),
    "a unit behind a time": ("measure.benchmark.max_s=1s", "a number above 0"),
    "a GPU by its index": ("device=1", "launcher.gpus=1"),
    "a device of torch": ("device=cuda:3", "launcher.gpus=3"),
    "a plus before a group": ("+impl=naive", "leave out the +"),
    "a field removed that is not there": ("~impl.args", "leave it out"),
    "axes as a list": ("axes=[1] -m", "takes fields with their values"),
    "a label of the table": ("impl=torch,compiled(of=naive) -m", "impl=compiled impl.of=naive"),
    "a file alone": ("own.py impl=compiled", "workload=own.py"),
    "a number beyond all": ("seed=1e99", "give at most"),
    "a number that is a power": ("seed=9999**999", "give a whole number"),
    "no folder": ("output_dir=", "not empty"),
    "pairs as a list": ("pairs=workload.rows,workload.cols -m", "pairs={workload.cols:[256,1024]}"),
    "an argument without its prefix": ("tune workload=add impl=triton BLOCK=64,128", "impl.args.BLOCK"),
    "an argument without a value": ("workload=add impl=triton impl.args.BLOCK=", "give a finite number"),
    "a path without its option": ("workload.path=k.py", "workload=FILE"),
    "a path without a function": ("impl=file impl.path=k.py", "impl.path=k.py:gelu"),
    "two colons in a path": ("impl=file impl.path=k.py::gelu", "impl.path=my_softmax.py:softmax"),
    "a module that is a folder": ("impl=file impl.path=folder:gelu", "a file ends with .py"),
    "a folder as a workload": ("workload=folder", "workload=folder/"),
    "an empty file as a workload": ("workload=empty.py", "def inputs("),
    "a JSON of something else": ("workload=d.json", "without a field"),
    "a file as a folder of YAML files": ("--config-dir notes.txt", "give that of your YAML files"),
    "the word last": ("plan last", "resume=last"),
    "the folder of a run": (f"workload=gelu {RUN}", f"resume={RUN}"),
    "resume of another folder": ("resume=folder", f"give {RUN}"),
    "a file of a run": (f"show {RUN}/rows.csv", f"give {RUN}"),
    "a run that is not there": ("compare outputs/2024-01-01/00-00-00-both last", f"give {RUN}"),
    "a condition as a word": ("show workload=gelu", "--where workload=gelu"),
    "a sort without a column": ("show --sort", "expected one argument"),
    "dashes before a field": ("show --output_dir=x", "did you mean output_dir=?"),
    "an ending of another program": ("history --output x.pdf", "give another ending"),
    "a file for a folder": ("report png --output x.html", "give a folder"),
    "a folder for a file": ("show --output folder", "give --output PATH elsewhere"),
    "one run twice": ("gate --baseline last last", "give each run once"),
    "a revision that is not there": ("gate --against nowhere impl=file impl.path=k.py:gelu", "--against nowhere"),
    "words for a number": ("gate --against HEAD impl=triton --repeat two", "gate --help"),
    "a flag of a sub-command that is misspelt": ("gat --against HEAD", "did you mean the sub-command gate"),
    "a report as a flag": ("report --html", "--html: no such flag"),
    "a format of another command": ("plan --format csv", "'table', 'json'"),
}


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """The current folder, with a finished run, a folder and files that are no kernels."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)


def said(words, capsys):
    """Return the one line of a mistake."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[:8]) == ("", 1, "runner: "), out + err
    return err


@pytest.mark.parametrize(("line", "step"), KINDS.values(), ids=KINDS.keys())
def test_each_kind_is_one_line_with_the_next_step(line, step, here, capsys):
    words = [line.strip("'")] if line.startswith("'") else line.split(" ")
    assert step in said(words, capsys)
    assert not {*os.listdir()} - {*FILES, "folder", "outputs"}


def misspelt(name):
    """Return ``name`` with a letter dropped, doubled, swapped with the next one, or as a capital."""
    at = DRAWS.randrange(1, len(name) - 1)
    before, letter, after = name[:at], name[at], name[at + 1 :]
    swapped = f"{before}{after[0]}{letter}{after[1:]}"
    return DRAWS.choice([before + after, before + letter * 2 + after, swapped, name.upper()])


GROUPS = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("workload", "impl", "measure")
}
NAMES = [
    *(("{}={}", group, name) for group, names in GROUPS.items() for name in names if len(name) > 4),
    *(("{}{}=3", "workload.", name) for name in ("dtype", "rows", "cols", "layout")),
    *(("workload.dtype={1}", "", name) for name in ("float32", "bfloat16", "float64")),
    *(("{1} workload=gelu", "", name) for name in ("history", "compare", "doctor", "report", "verify")),
    *(("show {}{}", "--", name) for name in ("fastest", "where", "columns", "format")),
]


DRAWN = [
    (form.format(begin, next(word for word in iter(partial(misspelt, name), "") if word != name)), name)
    for form, begin, name in DRAWS.sample(NAMES, 12)
]


@pytest.mark.parametrize(("line", "name"), DRAWN)
def test_a_misspelt_name_is_one_line_with_the_right_one(line, name, here, capsys):
    assert name in said(line.split(), capsys)

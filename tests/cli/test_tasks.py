"""``runner tasks``: sizes, memory, and what cannot run here, in a table."""

from __future__ import annotations

import pytest
from rich.console import Console

from runner.cli import tasks
from runner.device import gpus
from runner.records.bad_input import BadInput

TASK = """import torch
from torch import nn
{line}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
    def forward(self, x): return self.norm(x)
rows, width = 2, 1024
def get_inputs(): return [torch.rand(rows, width{device})]
"""
OWN = "import torch\ndef inputs(n=3): return torch.ones(n)\ndef reference(x): return x[: int(x.sum())]\n"


FILES = {
    "1_norm.py": TASK.format(line="", device=""),
    "2_large.py": TASK.format(line="", device="").replace("2, 1024", "2**30, 2**20"),
    "3_gpu.py": TASK.format(line="", device=", device='cuda:0'"),
    "4_either.py": TASK.format(line="", device=", device='cuda' if torch.cuda.is_available() else 'cpu'"),
    "5_package.py": TASK.format(line="import a_missing_package", device=""),
    "6_exit.py": TASK.format(line="raise SystemExit('no')", device=""),
    "7_broken.py": TASK.format(line="def (", device=""),
    "8_value.py": OWN,
    "9_crash.py": TASK.format(line="import ctypes; ctypes.string_at(0)", device=""),
    "10_after.py": TASK.format(line="", device=""),
}


@pytest.fixture
def table(tmp_path, monkeypatch, capsys):
    """``table(files)``: the lines about them, by their first word."""
    monkeypatch.setattr(gpus, "visible", list)
    monkeypatch.chdir(tmp_path)

    def lines(files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        assert tasks.main(["."]) == 0
        printed = map(str.split, capsys.readouterr().out.splitlines())
        return {first.removeprefix("./"): " ".join(others) for first, *others in filter(None, printed)}

    return lines


def test_each_task_has_its_sizes_its_memory_and_what_keeps_it_from_running(table, tmp_path):
    (tmp_path / "outputs" / "12-00-00-1_norm.py").mkdir(parents=True)  # of a run
    listed = table(FILES)
    # 2 x 1024 numbers; weight, bias, mean and variance of 1024 numbers each, and a count; 3 outputs in float64.
    assert listed["1_norm.py"] == "kernelbench 24.01 KiB 8 KiB 96 KiB rows=2 width=1024"
    assert listed["2_large.py"].startswith("cannot run here: needs ")
    assert listed["2_large.py"].endswith("; give smaller sizes")
    assert listed["3_gpu.py"] == "cannot run here: asks for a GPU in line 10"
    assert listed["4_either.py"] == listed["1_norm.py"]
    assert listed["5_package.py"].endswith("its inputs need the package a_missing_package; install it to run this")
    assert listed["7_broken.py"].endswith("line 3: invalid syntax")
    assert listed["8_value.py"] == "file n=3"  # its output's size depends on a value
    assert listed["9_crash.py"] == "cannot run here: the process that computed its sizes was killed by SIGSEGV"
    assert listed["10_after.py"] == listed["1_norm.py"]
    assert listed["10"] == "tasks: 5 can run here, 5 cannot"


def test_a_narrow_terminal_has_room_for_the_memory(table, monkeypatch):
    monkeypatch.setattr(tasks, "console", lambda: Console(width=60))
    task = FILES["1_norm.py"].replace("rows, width = 2, 1024", "rows, width, channels = 2, 1024, 1")
    assert table({"1_norm.py": task})["1_norm.py"] == "kernelbench 24.01 KiB 8 KiB 96 KiB"


def test_modules_of_the_folder_with_names_of_others_are_in_nobodys_way(cold, table, tmp_path):
    for name in ("torch", "selectors", "numpy", "pickle"):
        (tmp_path / f"{name}.py").write_text("print('mine'); raise RuntimeError")
    assert table({"1_norm.py": FILES["1_norm.py"]})["1_norm.py"].endswith(" rows=2 width=1024")


def test_a_folder_that_is_not_there_is_no_task():
    with pytest.raises(BadInput, match=r"^tasks nowhere: there is no such folder or file; name one with tasks"):
        tasks.main(["nowhere"])


def test_its_help_has_its_own_argument_alone(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        tasks.main(["--help"])
    printed = capsys.readouterr().out
    assert "usage: runner tasks FOLDER... [options]" in printed
    assert "RUN" not in printed


def test_without_a_folder_it_says_what_to_type():
    with pytest.raises(BadInput, match="name a folder, as in python -m runner tasks level1"):
        tasks.main([])

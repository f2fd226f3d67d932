"""Studies of public tasks: small sizes with which a task still runs, and a task beside itself."""

from __future__ import annotations

import argparse

from benchmarks.subject.equal_tasks import compared, report
from benchmarks.subject.sizes import smaller
from runner.tasks import own_file

TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x, y): return x.view(rows, *dims) + y
rows, dims, fixed = 4096, (512, 512), 16
def get_inputs(): return [torch.rand(rows, dims[0] * dims[1]), torch.rand(16 if fixed == 16 else 3, *dims)[:1]]
"""


def test_sizes_are_halved_until_the_task_is_small_and_only_if_it_runs(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    fields = smaller(own_file.read(str(tmp_path / "task.py")), 2**16)
    assert fields["rows"] * fields["dims"][0] * fields["dims"][1] * 8 <= 2**16
    assert fields["dims"][0] == fields["dims"][1]
    (tmp_path / "bound.py").write_text(TASK.replace("(rows, dims[0] *", "(4096, dims[0] *"))
    assert smaller(own_file.read(str(tmp_path / "bound.py")), 2**16)["rows"] == 4096


def test_a_task_beside_itself_is_equal_and_one_that_cannot_be_read_is_refused(tmp_path):
    options = argparse.Namespace(bytes=2**12, device="cpu")
    (tmp_path / "task.py").write_text(TASK)
    word = compared(str(tmp_path / "task.py"), options)
    assert word in ("same", "unclear")
    (tmp_path / "other.py").write_text("x = 1\n")
    refused = compared(str(tmp_path / "other.py"), options)
    assert refused.startswith("refused: ")
    page = report({word: ["task.py"], "refused": [f"other.py: {refused}"], "faster": ["a.py"] * 2})
    assert "| called different | 2 | 1 % | MISS |" in page
    assert "| torch's own result called wrong | 0 | 0 | PASS |" in page

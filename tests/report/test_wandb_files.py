"""What W&B gets of files: those that are here, and one table of those that are alike."""

from __future__ import annotations

import pytest

from runner.findings.kept_files import kept_files
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.wandb.content import artifact_tables

KERNELS = {
    "torch": "name,calls,us\ngemm,2,1.5\n",
    "naive": "name,calls,us,note\nadd,9,0.5,slow\nmul,1,,\n",
}


@pytest.fixture
def rows(tmp_path):
    found = []
    for impl, text in KERNELS.items():
        case = CaseRecord(Choice("gelu", {"cols": 4}), Choice(impl, {}), (), Settings("cpu", 0))
        names = [f"files/{case.key}/profile/{name}" for name in ("kernels.csv", "trace.json.gz", "elsewhere")]
        (tmp_path / names[0]).parent.mkdir(parents=True)
        (tmp_path / names[0]).write_text(text)
        (tmp_path / names[1]).write_bytes(b"trace")
        found.append(Row(case=case, status="ok", files=tuple(names)))
    return found


def test_files_that_are_not_here_are_left_out(rows, tmp_path):
    for row in rows:
        assert list(map(str, kept_files(tmp_path, row))) == [*row.files[:2]]


def test_tables_of_all_cases_are_one(rows, tmp_path):
    found = artifact_tables(tmp_path, rows)
    assert list(found) == ["profile/kernels"]
    assert found["profile/kernels"]["columns"] == ["case", "implementation", "name", "calls", "us", "note"]
    assert found["profile/kernels"]["data"] == [
        ["gelu", "torch", "gemm", 2.0, 1.5, None],
        ["gelu", "naive", "add", 9.0, 0.5, "slow"],
        ["gelu", "naive", "mul", 1.0, None, None],
    ]

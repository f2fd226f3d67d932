"""``deterministic_algorithms=true``: the setting and cuBLAS's environment are there in time; their cost is shown."""

from __future__ import annotations

import os

from runner.cli import compare

USER = """
import os
import torch
def gelu(x):
    mode = torch.are_deterministic_algorithms_enabled()
    assert (os.environ.get("CUBLAS_WORKSPACE_CONFIG") == ":4096:8") == mode
    return torch.nn.functional.gelu(x, approximate="tanh")
def put(x):
    torch.zeros(2).put_(torch.tensor([0]), torch.tensor([1.0]))
    return gelu(x)
"""
SMALL = ["workload=gelu", "workload.rows=8", "workload.cols=64", "default_axes=false", "device=cpu", "quick=true"]


def test_both_ways_are_measured_and_what_cannot_be_deterministic_is_unsupported(run, tmp_path, capsys):
    (tmp_path / "user.py").write_text(USER)
    impls = ["impl=torch,file", "impl.path=user.py:gelu,user.py:put"]
    result = run(*SMALL, *impls, "deterministic_algorithms=false,true", "measure.benchmark.max_s=0.01", "-m")
    assert result.code == 0, result.out + result.err
    assert "gelu deterministic_algorithms=false\n" in result.out
    assert "gelu deterministic_algorithms=true\n" in result.out
    plain, other = result.rows()[:3], result.rows()[3:]
    assert [row["status"] for row in plain] == ["ok"] * 3
    assert [row["status"] for row in other] == ["ok", "ok", "unsupported"]
    assert "put_ does not have a deterministic implementation" in other[2]["reason"]
    assert "deterministic_algorithms" not in plain[0]["case"]  # so that its key is that from before there was the field
    assert other[0]["case"]["deterministic_algorithms"] is True
    assert compare.main([os.fspath(result.folder), "--by", "deterministic_algorithms"]) == 0
    assert "true compared with false (deterministic_algorithms)" in capsys.readouterr().out

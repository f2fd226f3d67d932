"""impl=copy: as many bytes as the workload must move, in the same paired rounds, and never the fastest."""

from __future__ import annotations

import pytest

from runner.config import plan
from runner.findings.lines import derive_lines
from runner.findings.names import Names
from runner.findings.notes import row_notes
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord
from runner.worker import Worker
from runner.worker.problem import ProblemState


def cases(*words: str) -> list[CaseRecord]:
    fast = ["measure.benchmark.samples=20", "measure.benchmark.target_cpu_pct=90", "measure.benchmark.warmup_s=0"]
    return list(plan([*words, *fast, "log=none", "device=cpu", "default_axes=false", "-m"]).cases)


def test_a_copy_stands_beside_the_others_in_paired_rounds_and_is_never_the_fastest():
    worker = Worker()
    grid = cases("workload=gelu", "workload.shape=[64,64]", "impl=copy,naive")
    rows = [worker.run(case)[0] for case in grid]
    lines = {line.row.case.impl.name: line for line in derive_lines(rows, None, [worker.compare()])}
    copy, naive = lines["copy"], lines["naive"]
    assert (copy.row.status, naive.fastest, naive.baseline) == ("ok", "only", True)  # though naive is slower
    assert (copy.fastest, copy.paired, copy.tflops, copy.row.metrics.get("correct")) == ("no", True, None, None)
    assert copy.row.metrics["bytes_min"] == naive.row.metrics["bytes_min"] == 2 * 64 * 64 * 4
    assert copy.row.metrics["peak_mem_bytes"] == 64 * 64 * 4
    (note,) = [text for text in row_notes(rows, Names(grid)) if "not checked" in text]
    assert note.startswith("gelu copy: not checked, and never the fastest: it moves as many bytes as the workload must")


@pytest.mark.parametrize(
    "workload", [["mlp", "workload.batch=8", "workload.dim=8"], ["softmax", "workload.pass=bwd", "workload.rows=8"]]
)
def test_a_copy_replaces_the_whole_call_of_a_workload(workload):
    (case,) = cases(f"workload={workload[0]}", *workload[1:], "impl=copy")
    row, _ = Worker().run(case)
    assert (row.status, row.metrics["mutates_inputs"]) == ("ok", False)


def test_a_copy_is_timed_as_bytes_without_operations(monkeypatch):
    kept = []
    monkeypatch.setattr(ProblemState, "keep_call", lambda problem, case, call, metrics: kept.append(call))
    (case,) = cases("workload=gelu", "workload.shape=[64,64]", "impl=copy")
    Worker().run(case)
    assert [(call.work.bytes_min, call.work.flops) for call in kept] == [(2 * 64 * 64 * 4, 0)]


def test_a_copy_cannot_be_wrapped():
    with pytest.raises(BadInput, match=r"^impl.of: no implementation 'copy' to wrap; "):
        cases("workload=gelu", "impl=compiled", "impl.of=copy")

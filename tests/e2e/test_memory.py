"""``measure=memory`` as a user types it."""

from __future__ import annotations

import csv


def test_a_training_step_is_told_by_its_parts_and_leaves_files(run, cold):
    words = ["workload=mlp", "workload.pass=train_step", "workload.layers=2", "workload.dim=64", "workload.batch=64"]
    result = run(*words, "impl=torch", "measure=memory")
    assert result.code == 0, result.out + result.err
    (row,) = result.rows()
    figures, tensor = row["metrics"], 4 * 64 * 64
    assert figures["saved_bytes"] == 3 * tensor  # what each gelu takes in, and what the second layer does
    assert figures["peak_forward_bytes"] >= 4 * tensor
    assert figures["peak_backward_bytes"] >= figures["peak_forward_bytes"]
    assert figures["peak_optimizer_bytes"] < figures["peak_backward_bytes"]
    assert figures["input_bytes"] == 3 * tensor + 2 * 4 * 64
    names = {file.rpartition("/")[2]: file for file in row["files"]}
    assert set(names) == {"allocations.csv", "parts.csv", "summary.txt"}
    with open(result.folder / names["parts.csv"], newline="") as file:
        parts = [line["part"] for line in csv.DictReader(file)]
    assert "step_1/forward/layer_1" in parts
    assert "step_1/optimizer_step" in parts
    assert "saved for backward" in result.out
    assert "kernels/mlp/torch.py" in result.out

"""Names of the outputs of workloads whose tolerance is automatic: a row says by them what is wrong."""

from __future__ import annotations

import pytest

from runner.subject.operation import expected_outputs

IMAGES = {"batch": 2, "channels": 2, "height": 4, "width": 4, "filters": 2}
BLOCK = {"batch": 1, "length": 3, "dim": 4, "heads": 1, "kv_heads": 1, "d": 4, "hidden": 4}


@pytest.mark.parametrize(
    ("op", "fields", "names"),
    [
        ("layernorm", {"rows": 3, "cols": 5, "pass_": "fwd"}, "y"),
        ("layernorm", {"rows": 3, "cols": 5, "pass_": "bwd"}, "dx dw db"),
        ("rmsnorm", {"rows": 3, "cols": 5, "pass_": "fwd_bwd"}, "y dx dw"),
        ("conv2d", IMAGES | {"pass_": "bwd"}, "dx dw"),
        ("conv_bn_relu_pool", IMAGES | {"mode": "training", "pass_": "fwd_bwd"}, "y dx dw dgamma dbeta"),
        ("transformer_block", BLOCK | {"style": "llama", "pass_": "fwd"}, "y"),
        (
            "transformer_block",
            BLOCK | {"style": "gpt2", "pass_": "fwd_bwd"},
            "y x norm1 norm1_bias qkv qkv_bias out out_bias norm2 norm2_bias up up_bias down down_bias",
        ),
        (
            "transformer_block",
            BLOCK | {"style": "llama", "pass_": "train_step", "optimizer": "sgd"},
            "norm1 qkv out norm2 up down y norm1 qkv out norm2 up down",
        ),
    ],
)
def test_each_output_has_a_name_in_the_reason(make, op, fields, names):
    workload, inputs = make(op, dtype="float32", **fields)
    expected, outputs = expected_outputs(workload, inputs, quick=True), workload.outputs_of(*inputs)
    assert [name.removeprefix("grad of ").replace(" ", "_") for name in workload.names] == names.split()
    assert expected.check(outputs).correct
    assert len(outputs) == len(workload.names)
    for place, name in enumerate(workload.names):
        wrong = [y + (at == place) for at, y in enumerate(outputs)]
        assert expected.check((*wrong,)).reason.startswith(f"{name}: ")

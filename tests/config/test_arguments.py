"""Arguments of a kernel's function on the command line: ``impl.args.BLOCK=64``."""

from __future__ import annotations

import shlex

import pytest

from runner.config import plan
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord
from runner.report import reproduce

ONE = ("workload.cols=64",)
USER = """
class ModelNew: pass
import torch
def add(a, b: torch.Tensor = None, *, BLOCK=64, mode="x", scale: "torch.Tensor | None" = None): return a + b
def gelu(x, form="tanh", *, wide=True): return x
if True:
    def rows(x, *, ROWS: int = 1, needed): return x
"""


def labels(*words):
    return [case.label.partition(" dtype=")[0] for case in plan([*words, *ONE, "-m"]).cases]


@pytest.fixture
def user(tmp_path):
    (tmp_path / "k.py").write_text(USER)
    return f"impl.path={tmp_path}/k.py"


def test_arguments_multiply_the_implementations_that_have_them_and_no_others():
    assert labels("workload=add", "impl=torch,triton", "impl.args.BLOCK=64,128", "impl.args.num_warps=4,8") == [
        "add/torch",
        "add/triton(BLOCK=64, num_warps=4)",
        "add/triton(BLOCK=64, num_warps=8)",
        "add/triton(BLOCK=128, num_warps=4)",
        "add/triton(BLOCK=128, num_warps=8)",
    ]
    some = labels("workload=add,gelu", "impl=triton,cuda", "impl.args.threads=64,128")
    assert [one.rpartition("(build")[0] or one for one in some] == [
        "add/triton", "add/cuda", "add/cuda", "gelu/triton", "gelu/cuda",
    ]  # fmt: skip


def test_without_arguments_a_case_has_its_old_key_and_with_them_another():
    plain, default, other = (
        plan(["workload=add", "impl=triton", *given]).cases[0]
        for given in ([], ["impl.args.BLOCK=null"], ["impl.args.BLOCK=64"])
    )
    assert plain == default
    assert plain.impl.to_record() == {"name": "triton"}
    assert other.impl.to_record() == {"name": "triton", "args.BLOCK": 64}
    assert plain.key != other.key
    assert CaseRecord.from_record(other.to_record()) == other


def test_the_command_of_a_case_makes_that_case(user):
    asked = ["impl=file", f"{user}:add", "impl.args.mode='a b'", "impl.args.BLOCK=8", "workload=add", *ONE]
    (case,) = plan(asked).cases
    (again,) = plan(shlex.split(reproduce.command(case))[3:]).cases
    assert case.key == again.key


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("impl=triton impl.args.BLOK=1", "BLOK: no such argument of add/triton; did you mean BLOCK? One of: BLOCK, n"),
        ("impl=naive impl.args.TILE=1", "TILE: no such argument of add/naive; there are none: only keyword arg"),
        ("impl=naive impl.args.BLOCK=1", "BLOCK: no such argument of add/naive; triton has it: impl=triton"),
        ("impl=torch impl.args.BLOCK=1", "BLOCK: impl=torch takes no such argument; triton has it: impl=triton"),
        ("impl=torch impl.args.TILE=1", "TILE: impl=torch takes no such argument; no implementation does: docs/groups"),
        ("impl=triton impl.args=5", " 5 is not allowed; give an argument by its name, as in impl.args.BLOCK=64"),
        ("impl=triton impl.args.BLOCK=[1,2]", "BLOCK: [1, 2] is not allowed; to sweep: impl.args.BLOCK=1,2 -m"),
        ("impl=triton impl.args.BLOCK=nan", "BLOCK: nan is not allowed; give a finite number, true, false or a word"),
        ("impl=cuda impl.args.variant=lecture", "variant: no such argument of add/cuda; one of: threads"),
        ("impl=file {user}:add impl.args.scale=1", "scale: no such argument of add/file; one of: BLOCK, mode"),
        ("impl=file {user}:gelu workload=gelu impl.args.form=erf", "form: no such argument of gelu/file; one of: wide"),
        ("impl=file {user}:rows impl.args.needed=1", "needed: no such argument of add/file; one of: ROWS"),
        ("impl=file {user}:gele impl.args.a=1", "has no gele; did you mean gelu? One of: ModelNew, add, gelu, rows"),
        ("impl=file {user}", "k.py:ModelNew"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused_in_one_line_with_what_can(user, words, answer):
    with pytest.raises(BadInput) as caught:
        plan(["workload=add", *words.format(user=user).split()])
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)

"""A workload in one file, through the command line: the table, sweeps, names, layouts, passes, and each refusal."""

from __future__ import annotations

import shlex

import pytest

from runner.report.reproduce import command
from runner.store.journal import read_rows

RMS_NORM = """import torch
def inputs(rows=16, cols=32): return torch.randn(rows, cols), torch.ones(cols)
def reference(x, w, eps=1e-6): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w
def fused(x, w, eps=1e-6): return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)
def plain(x, w): return fused(x, w)
"""
MINE = "def rms(x, w, eps=1e-6): return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * w\n"
QUICK = ("device=cpu", "quick=true", "measure.benchmark.max_s=0.02", "measure.benchmark.paired_rounds=0")


@pytest.fixture
def here(tmp_path):
    (tmp_path / "rms_norm.py").write_text(RMS_NORM)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def cases(result):
    """Workload, implementation and status of each row."""
    records = [row["case"] for row in result.rows()]
    names = [(case["workload"]["name"], case["impl"]["name"]) for case in records]
    return [(*name, row["status"]) for name, row in zip(names, result.rows(), strict=True)]


def test_the_file_of_the_page_makes_a_table(run, here):
    words = ("workload=rms_norm.py", "workload.cols=32,64", "impl=reference,fused,file", "impl.path=mine.py:rms", "-m")
    result = run(*words, *QUICK)
    assert result.code == 0, result.out + result.err
    assert cases(result) == [("rms_norm.py", name, "ok") for name in ("reference", "fused", "file")] * 2
    assert "rms_norm.py cols=32" in result.out
    assert all(row["metrics"]["correct"] for row in result.rows())
    assert {row["case"]["workload"]["cols"] for row in result.rows()} == {32, 64}


def test_passes_layouts_types_and_shapes_are_fields(run, here):
    words = ("workload=rms_norm.py", "impl=reference,fused", "workload.pass=fwd,bwd,fwd_bwd", "-m")
    result = run(*words, "workload.layout=transposed", "workload.shape=[4,6]", "workload.dtype=bfloat16", *QUICK)
    assert result.code == 0, result.out + result.err
    assert [status for *_, status in cases(result)] == ["ok"] * 6


def test_without_an_implementation_it_is_the_reference(run, here):
    assert cases(run("workload=rms_norm.py", *QUICK)) == [("rms_norm.py", "reference", "ok")]


def test_a_name_of_a_shipped_workload_is_that_of_the_file(run, here):
    (here / "softmax.py").write_text(
        RMS_NORM.replace("def fused", "def triton").replace("return fused", "return triton")
    )
    result = run("workload=softmax.py,rms_norm.py", "impl=reference,triton", "-m", *QUICK)
    assert cases(result) == [
        ("softmax.py", "reference", "ok"),
        ("softmax.py", "triton", "ok"),
        ("rms_norm.py", "reference", "ok"),
        ("rms_norm.py", "triton", "unsupported"),
    ]


def test_names_of_shipped_implementations_and_shapes_print_no_warning(run, here):
    (here / "rms_norm.py").write_text(RMS_NORM + "shapes = {'gpt2': [{'rows': 8}]}\n")
    result = run("workload=rms_norm.py", "impl=fused", "+shapes=gpt2", "-m", *QUICK)
    assert cases(result) == [("rms_norm.py", "fused", "ok")]
    assert result.rows()[0]["case"]["workload"]["rows"] == 8
    assert "Warning" not in result.out + result.err


def test_an_option_that_an_implementation_lacks_is_named(run, here):
    result = run("workload=rms_norm.py", "workload.eps=0.5", "impl=reference,fused,plain", "-m", *QUICK)
    assert [status for *_, status in cases(result)] == ["ok", "ok", "unsupported"]
    assert "it takes no eps, and workload.eps=0.5 is not the default" in result.out


def test_an_edit_of_one_function_makes_its_rows_alone_out_of_date(run, here):
    words = ("workload=rms_norm.py", "impl=reference,fused", "-m", *QUICK)
    assert run(*words).code == 0
    (here / "rms_norm.py").write_text(RMS_NORM.replace("rms_norm(x,", "rms_norm(1 * x,"))
    result = run(*words, "resume=last")
    assert "1 of 2 cases kept, 1 to run" in result.out
    (here / "rms_norm.py").write_text(RMS_NORM.replace("pow(2)", "square()"))
    assert "0 of 2 cases kept, 2 to run" in run(*words, "resume=last").out


def test_a_wrong_function_is_wrong_and_a_check_of_the_file_judges(run, here):
    (here / "bad.py").write_text(RMS_NORM + "def doubled(x, w): return 2 * fused(x, w)\n")
    assert cases(run("workload=bad.py", "impl=doubled", *QUICK))[0][2] == "wrong"
    (here / "own.py").write_text(
        RMS_NORM + "def doubled(x, w): return 2 * fused(x, w)\n"
        "def check(inputs, outputs): return None if outputs.shape == inputs[0].shape else 'another shape'\n"
        "def narrow(x, w): return fused(x, w)[1:]\n"
    )
    result = run("workload=own.py", "impl=doubled,narrow", "-m", *QUICK)
    assert [status for *_, status in cases(result)] == ["ok", "wrong"]
    assert "another shape" in result.out


def test_what_is_kept_of_integers_is_wrong(run, here):
    (here / "mix.py").write_text(
        "import torch\ndef inputs(n=65): return torch.randint(2**60, (n,))\n"
        "def reference(x): return (x ^ (x >> 30)) * 0x27d4eb2f165667c5\n"
        "_kept = {}\n"
        "def keeps(x): return _kept.setdefault(x.shape, reference(x)).clone()\n"
        "def last(x): return torch.cat([reference(x[:-1]), x[-1:]])\n"
        "def in_place(x): return x.bitwise_xor_(x >> 30).mul_(0x27d4eb2f165667c5).clone()\n"
    )
    result = run("workload=mix.py", "impl=keeps,last,in_place", "-m", *QUICK)
    assert [status for *_, status in cases(result)] == ["wrong", "wrong", "ok"]
    assert result.out.count("it is right for other values") == 2  # in the line of the case and below the table
    assert "1 of 65 elements wrong, the first at (64,)" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("workload=rms_norm.py", "workload.colz=3"), "workload.colz: no such field; did you mean cols?"),
        (
            ("workload=rms_norm.py", "workload.ranks=2"),
            "workload.ranks: no such field; a file has it if one of its functions has a parameter rank or world_size",
        ),
        (
            ("workload=batched.py", "workload.batch=2"),
            "workload.batch: no such field; did you mean batch_size? One of: ",
        ),
        (("workload=batched.py", "workload.cols=2"), "workload.cols: no such field; one of: axes, batch_size, dtype"),
        (("workload=rms_norm.py", "workload.cols=x"), "workload.cols: 'x' is not allowed; give a whole number"),
        (
            ("workload=a/tasks",),
            "workload=a/tasks/: no task is there; name a folder or a glob with tasks, as in level1/*.py",
        ),
        (("workload=no.py",), "workload=no.py: No such file or directory: give a path that exists"),
        (
            ("workload=sizeless.py", "workload.shape=[4]"),
            "has no shape; give inputs() sizes, as in n=64",
        ),
        (("workload=checks.py",), "checks.py: check() gets two arguments; write it as def check(inputs, outputs)"),
        (("workload=mine.py",), "mine.py: it defines no inputs(); write one that returns the arguments"),
        (
            ("workload=literal.py",),
            "inputs: the default of n is SIZE, which is not a literal; give a number",
        ),
        (
            ("workload=rms_norm.py", "impl=nope"),
            "one of: compiled, copy, cudagraph, file, fused, plain, reference\n",
        ),
        (("workload=file",), "workload=file: say which, as in workload=file workload.path=rms_norm.py"),
        (("workload=rms_norm.py", "workload.pass=up"), "pass: 'up' is not allowed; one of: bwd, fwd, fwd_bwd"),
        (
            ("workload=rms_norm.py", "workload.layout=rows"),
            "layout: 'rows' is not allowed; one of: contiguous, ",
        ),
        (
            ("workload=rms_norm.py", "workload.dtype=half"),
            "dtype: 'half' is not allowed; did you mean float16? One of: bfloat16, float16, ",
        ),
        (
            ("workload=add", "workload.layout=strided"),
            "rmsnorm, softmax have: workload=attention or",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(run, here, words, message):
    (here / "a" / "tasks").mkdir(parents=True)
    (here / "literal.py").write_text("SIZE = 3\ndef inputs(n=SIZE): return n\ndef reference(x): return x\n")
    (here / "batched.py").write_text("def inputs(batch_size=3): return 1\ndef reference(x): return x\n")
    (here / "sizeless.py").write_text("def inputs(): return 1\ndef reference(x): return x\n")
    (here / "checks.py").write_text(RMS_NORM + "def check(outputs): return None\n")
    result = run(*words)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.folder is None


def test_a_file_that_fails_costs_its_own_rows(run, here):
    (here / "raises.py").write_text("import nowhere\n" + RMS_NORM)
    result = run("workload=raises.py,rms_norm.py", "impl=reference", "-m", *QUICK)
    assert [status for *_, status in cases(result)] == ["unsupported", "ok"]
    assert "its inputs need the package nowhere; install it to run this" in result.out


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        (
            "def inputs(n=64): return torch.randn(n)\ndef reference(x): raise ValueError('never')\n",
            (),
            "error: the reference fails: ValueError: never (broken.py:3)",
        ),
        (
            "def inputs(n=64): return torch.randn(n)\ndef reference(x): raise NotImplementedError\n",
            (),
            "unsupported: the reference fails: NotImplementedError (broken.py:3)",
        ),
        (
            "def inputs(n=64): return torch.randn(n, n)\ndef reference(x): return 2 * x\n",
            ("workload.n=2000000",),
            "oom: cannot allocate 14.55 TiB (16000000000000 bytes); give smaller sizes (broken.py:2)",
        ),
        (
            "def inputs(n=64): raise MemoryError('Unable to allocate 65.5 TiB for an array')\ndef reference(x): ...\n",
            (),
            "oom: MemoryError: Unable to allocate 65.5 TiB for an array (broken.py:2)",
        ),
        (
            "def inputs(n=64): torch.randn(n)\ndef reference(x): ...\n",
            (),
            "error: TypeError: inputs() returns None; return the arguments, as in def inputs(rows=4096): ",
        ),
    ],
)
def test_what_fails_in_the_worker_is_one_line_without_a_traceback(run, here, text, words, reason):
    (here / "broken.py").write_text(f"import torch\n{text}def same(x): return 2 * x\n")
    result = run("workload=broken.py", "impl=reference,same", "-m", *words, *QUICK)
    assert f"broken.py reference and same: {reason}" in result.out
    assert [status for *_, status in cases(result)] == [reason.partition(":")[0]] * 2
    assert "Traceback" not in result.out + result.err


def test_a_case_that_zeros_would_pass_has_no_correct_and_says_why(run, here):
    (here / "zeros.py").write_text(
        "import torch\ndef inputs(n=64): return torch.zeros(n)\ndef reference(x): return 2 * x\n"
    )
    (row,) = run("workload=zeros.py", "impl=reference", *QUICK).rows()
    assert (row["status"], row["metrics"]["correct"]) == ("ok", None)
    assert row["metrics"]["check_note"] == "zeros and a constant would pass: give inputs that make the outputs differ"


@pytest.mark.parametrize("op", ["gelu", "matmul", "softmax"])
def test_every_layout_of_shipped_workloads_is_right(run, op):
    sizes = "workload.shape=[6,10,14]" if op == "matmul" else "workload.shape=[6,10]"
    layouts = "workload.layout=contiguous,transposed,strided,offset"
    result = run(f"workload={op}", layouts, sizes, "impl=naive,torch,cuda", "-m", *QUICK)
    expected = [(op, name, "unsupported" if name == "cuda" else "ok") for name in ("naive", "torch", "cuda")]
    assert cases(result) == expected * 4


@pytest.mark.parametrize("impls", ["fused,file", pytest.param("compiled", marks=pytest.mark.long)])
def test_the_printed_command_makes_the_same_case_again(run, here, monkeypatch, impls):
    path = ["impl.path=mine.py:rms"] if "file" in impls else []
    (here / "a,b").mkdir()
    (here / "rms_norm.py").rename(here / "a,b" / "rms_norm.py")
    words = ("workload=file", "workload.path='a,b/rms_norm.py'", f"impl={impls}", *path, "workload.eps=0.001", "-m")
    monkeypatch.chdir(here)
    for row in read_rows(run(*words, "workload.shape=[4,6]", *QUICK).folder):
        printed = command(row.case)
        assert "workload.path" not in printed
        assert [again.case.key for again in read_rows(run(*shlex.split(printed)[3:]).folder)] == [row.case.key]


def test_impl_torch_of_a_workload_without_kernels_is_no_traceback(run, here):
    result = run("workload=rms_norm.py", "impl=torch", *QUICK)
    assert cases(result)[0][2] == "unsupported"
    assert "rms_norm.py has no function torch; choose reference" in result.out


def test_after_a_function_that_spoils_the_inputs_a_right_one_is_right(run, tmp_path):
    (tmp_path / "twice.py").write_text(
        "import torch\n"
        "def inputs(n=1000): return torch.randn(n)\n"
        "def reference(x): x.mul_(2)\n"
        "def spoils(x): x.data = x.data[:5].clone()\n"
        "def good(x): x.mul_(2)\n"
    )
    result = run("workload=twice.py", "impl=spoils,good", *QUICK, "-m")
    assert result.statuses() == {"spoils": "error", "good": "ok"}, result.out

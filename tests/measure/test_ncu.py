"""``measure=ncu`` with a stand-in for Nsight Compute, which does what ncu was seen to do or is documented to do.

These tests prove that failures of ncu are handled. The tests at the end use the real ncu.
"""

from __future__ import annotations

import json
from pathlib import Path

import preloaded
import pytest
import yaml

from runner.device import tools
from runner.measure import CannotMeasure, MeasureContext
from runner.measure.ncu import COLUMNS, Ncu
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.options import CONF
from runner.records.schema import build
from runner.records.settings import Settings
from runner.timing.call import Call
from runner.worker import AGAIN

RECORDED = Path(__file__).with_name("ncu")
FIELDS = {
    "rows": 64,
    "cols": 64,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
CASE = CaseRecord(Choice("gelu", FIELDS), Choice("torch", {}), (), Settings("cpu", 0))
CALL = Call(run=lambda: ())

FAKE = """{start}
import json, pathlib, subprocess, sys, time
words, behaviour = sys.argv[1:], {behaviour!r}
if "--import" in words:
    if "unreadable" in behaviour:
        sys.exit(1)
    page = words[words.index("--page") + 1]
    print((pathlib.Path({recorded!r}) / f"{{page}}.csv").read_text())
    sys.exit(0)
pathlib.Path({seen!r}).write_text(json.dumps(words))
target = pathlib.Path(words[words.index("--export") + 1])
program = words[words.index("--export") + 2:]
if behaviour == "hangs":
    time.sleep(60)
if behaviour.startswith("=="):
    print("==PROF== Connected to process 1")
    print(behaviour)
    sys.exit(1)
code = 0 if "at once" in behaviour else subprocess.call(program)
if code:
    print(f"==ERROR== The application returned an error code ({{code}}).")
elif behaviour.startswith("writes a"):
    target.write_text("a report")
if not target.is_file():
    print("==WARNING== No kernels were profiled.")
sys.exit(code)
"""


@pytest.fixture
def fake_ncu(tmp_path):
    """``fake_ncu(behaviour, **fields)``: a measurement that starts the stand-in, and the file of its arguments."""

    def make(behaviour: str, **fields: object) -> tuple[Ncu, Path]:
        seen, program = tmp_path / "words.json", tmp_path / "fake_ncu"
        program.write_text(
            FAKE.format(start=preloaded.stand_in(), behaviour=behaviour, recorded=str(RECORDED), seen=str(seen))
        )
        program.chmod(0o755)
        return ncu(path=str(program), **fields), seen

    return make


def ncu(**fields: object) -> Ncu:
    """Return the measurement with the fields of its YAML file, changed by ``fields``."""
    values = yaml.safe_load((CONF / "measure" / "ncu.yaml").read_text())
    return build(Ncu, {name: value for name, value in values.items() if name != "name"} | fields, "measure.ncu")


def context(tmp_path: Path, case: CaseRecord = CASE, **figures: object) -> MeasureContext:
    """Return the context of a case on the CPU that claims to be on a GPU."""
    return MeasureContext("cuda", case, tmp_path / "ncu", figures, AGAIN)


def test_a_case_once_more_becomes_columns_and_files(tmp_path, fake_ncu):
    measure, _ = fake_ncu("writes a report")
    there = context(tmp_path, n_kernels=4, latency_us=1.0, gpu_us=4000.0, bytes_min=1000)
    columns = measure.measure(CALL, there)
    assert columns["ncu_gpu_us"] == pytest.approx(4018.464)
    assert columns["ncu_kernels"] == 4
    assert columns["ncu_slowdown"] > 1
    assert columns.keys() <= COLUMNS.keys()
    kept = {path.name for path in there.folder.iterdir()}
    assert kept == {"case.json", "kernels.csv", "ncu.log", "report.ncu-rep", "summary.txt"}


def test_the_times_of_a_profiled_process_are_no_figures_and_in_no_file(tmp_path, fake_ncu):
    measure, _ = fake_ncu("writes a report")
    there = context(tmp_path)
    assert not measure.measure(CALL, there).keys() & {"latency_us", "ncu_slowdown"}
    assert not any("calls_us" in path.read_text() for path in there.folder.iterdir())


def words_of(measure: Ncu) -> str:
    return " ".join(measure.command("ncu", Path("report.ncu-rep"), ["python", "again"]))


def test_the_words_that_start_it(tmp_path, fake_ncu):
    measure, seen = fake_ncu("writes a report at once", kernels="soft.*max", most=3, args="--import-source yes")
    measure.measure(CALL, context(tmp_path))
    words = " ".join(json.loads(seen.read_text()))
    for expected in (
        "--profile-from-start off",
        "--replay-mode kernel --clock-control none --cache-control all",
        "--section SpeedOfLight --section LaunchStats --section Occupancy --metrics gpu__time_duration.sum,",
        "--kernel-name-base demangled --kernel-name regex:soft.*max --launch-count 3 --import-source yes",
        f"-P -m kernel_runner.worker.again {tmp_path / 'ncu' / 'case.json'}",
    ):
        assert expected in words
    assert "--nvtx-include" not in words  # which would lose what autograd launches from a thread of its own


@pytest.mark.parametrize("cold", [True, False])
def test_ncu_and_the_call_that_it_looks_at_have_one_word_for_the_cache(tmp_path, fake_ncu, cold):
    measure, seen = fake_ncu("writes a report at once", cold_l2=cold)
    measure.measure(CALL, context(tmp_path))
    assert f"--cache-control {'all' if cold else 'none'}" in " ".join(json.loads(seen.read_text()))
    assert json.loads((tmp_path / "ncu" / "case.json").read_text())["cold_l2"] is cold


def test_the_sets():
    assert "--set full" in words_of(ncu(set="full"))
    assert "--section MemoryWorkloadAnalysis_Tables" in words_of(ncu(set="memory"))
    assert "--section WarpStateStats" in words_of(ncu(set="occupancy"))
    assert "--kernel-name" not in words_of(ncu())
    assert "--cache-control none" in words_of(ncu(cold_l2=False))


def test_only_some_of_a_calls_kernels_are_no_call(tmp_path, fake_ncu):
    for fields, figures in (
        ({"kernels": "soft"}, {"n_kernels": 4}),
        ({"most": 4}, {"n_kernels": 9}),
        ({"most": 4}, {}),
    ):
        measure, _ = fake_ncu("writes a report at once", **fields)
        columns = measure.measure(CALL, context(tmp_path, **figures))
        assert "ncu_gpu_us" not in columns
        assert "only the call's" in columns["ncu_note"]
    measure, _ = fake_ncu("writes a report at once", most=4)
    assert "ncu_gpu_us" in measure.measure(CALL, context(tmp_path, n_kernels=4))


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU", "--cap-add SYS_ADMIN"),
        ("==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).", "nvidia-smi"),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other",
            "Ensure that no other",
        ),
        (
            "==ERROR== Failed to create/open lock file /x/nsight-compute-lock. Please check",
            "ncu reports: Failed to create",
        ),
        ("==ERROR== LibraryNotLoaded", "gVisor"),
        (
            "==ERROR== unrecognised option '--bogus'. Use --help for further details.",
            "ncu reports: unrecognised option",
        ),
        ("==ERROR== Failed to find metric dram__bytes_read.sum", "ncu reports: Failed to find metric"),
        ("==ERROR== Something that nobody has seen yet", "ncu reports: Something that nobody has seen yet"),
        ("writes nothing", "ncu saw no kernel: the call launches none, or none matches measure.ncu.kernels"),
    ],
)
def test_no_report_is_told_in_one_sentence(tmp_path, fake_ncu, behaviour, told):
    measure, _ = fake_ncu(behaviour)
    with pytest.raises(CannotMeasure, match=told.replace("(", r"\(")) as caught:
        measure.measure(CALL, context(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_report_that_cannot_be_read_back_is_told_with_what_to_type(tmp_path, fake_ncu):
    measure, _ = fake_ncu("writes an unreadable report at once")
    with pytest.raises(CannotMeasure, match=r"cannot read its own report; see: .*--page raw"):
        measure.measure(CALL, context(tmp_path))


def test_a_case_that_fails_under_it_says_how(tmp_path, fake_ncu):
    user = tmp_path / "user.py"
    user.write_text("def wrong(x): return x\n")
    case = CaseRecord(CASE.workload, Choice("file", {"path": f"{user}:wrong"}), (), Settings("cpu", 0))
    measure, _ = fake_ncu("writes a report")
    with pytest.raises(CannotMeasure, match="under ncu the case fails: wrong: y: "):
        measure.measure(CALL, context(tmp_path, case))


def test_it_is_ended_when_its_time_is_over(tmp_path, fake_ncu):
    measure, _ = fake_ncu("hangs", limit_s=0.5)
    with pytest.raises(CannotMeasure, match=r"not done after 0\.5 s.*launcher\.measure_limit_s"):
        measure.measure(CALL, context(tmp_path))


def test_where_there_is_none_or_no_gpu(tmp_path, monkeypatch):
    with pytest.raises(CannotMeasure, match="nowhere/ncu was not found: install Nsight Compute"):
        ncu(path="nowhere/ncu").measure(CALL, context(tmp_path))
    monkeypatch.setattr(tools, "find_tool", lambda name, given: None)
    with pytest.raises(CannotMeasure, match=r"measure\.ncu\.path"):
        ncu().measure(CALL, context(tmp_path))
    with pytest.raises(CannotMeasure, match="leave it out with device=cpu"):
        ncu().measure(CALL, MeasureContext("cpu", CASE, tmp_path))


def test_what_is_no_command_line_is_refused_before_anything_runs():
    with pytest.raises(BadInput, match=r"measure\.ncu\.args: '--name \"x' is not a command line"):
        ncu(args='--name "x')


@pytest.mark.gpu
@pytest.mark.skipif(tools.find_tool("ncu") is None, reason="Nsight Compute is not installed here")
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_real_one_agrees_with_the_size_of_the_work(tmp_path, impl):
    fields = {
        "rows": 8192,
        "cols": 8192,
        "pass": "fwd",
        "dtype": "float32",
        "tf32": False,
        "data": "normal",
        "layout": "contiguous",
    }
    case = CaseRecord(Choice("softmax", fields), Choice(impl, {}), (), Settings("cuda", 0))
    least = 2 * 8192 * 8192 * 4
    there = MeasureContext("cuda", case, tmp_path / "ncu", {"bytes_min": least, "n_kernels": 1}, AGAIN)
    columns = ncu().measure(CALL, there)
    assert columns["ncu_kernels"] == 1
    assert 0.8 < columns["bytes_ratio"] < 1.5  # of 512 MiB, what is left in the L2 is not written yet
    assert 20 < columns["dram_pct"] < 100
    assert columns["dram_bytes"] / columns["ncu_gpu_us"] < 5e6  # byte/us; an H200's memory has 4.8 TB/s
    assert "ncu_note" not in columns
    assert (there.folder / "report.ncu-rep").is_file()


@pytest.mark.gpu
@pytest.mark.skipif(tools.find_tool("ncu") is None, reason="Nsight Compute is not installed here")
def test_a_real_one_sees_what_autograd_launches_and_not_what_puts_parameters_back(tmp_path):
    fields = {"dim": 256, "batch": 64, "layers": 2, "steps": 1, "zero_grad": "every_step", "pass": "train_step"}
    values = yaml.safe_load((CONF / "workload" / "mlp.yaml").read_text())
    fields = {name: value for name, value in values.items() if name not in ("name", "axes", "shape")} | fields
    case = CaseRecord(Choice("mlp", fields), Choice("torch", {}), (), Settings("cuda", 0))
    there = MeasureContext("cuda", case, tmp_path / "ncu", program=AGAIN)
    ncu(most=100).measure(CALL, there)
    lines = (there.folder / "kernels.csv").read_text()
    assert "forward" in lines
    assert "optimizer_step" in lines
    assert "CopyFunctor" not in lines  # which puts the parameters back, before the profiler looks
    assert len(lines.splitlines()) > 1 + 2 * 2 + 2 * 3  # forward: product and GELU a layer; backward: three and more

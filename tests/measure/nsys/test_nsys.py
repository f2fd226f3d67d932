"""The case under nsys: its options, and the messages when it fails. A stand-in fails as real ones did."""

from __future__ import annotations

import json
import sys

import pytest

from runner.measure import CannotMeasure, MeasureContext
from runner.measure.nsys import Nsys, profile_options
from runner.records import schema
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.settings import Settings
from runner.timing.call import Call
from runner.worker import AGAIN

FIELDS = {"path": None, "preset": "light", "calls": 2, "limit_s": 60.0, "args": ()}
GELU = {
    "rows": 8,
    "cols": 8,
    "form": "tanh",
    "pass": "fwd",
    "dtype": "float32",
    "tf32": False,
    "data": "normal",
    "layout": "contiguous",
}
WRITES = "import json; json.dump({result}, open({path!r}, 'w'))"


def nsys(**changes):
    return Nsys(**(FIELDS | changes))


@pytest.fixture
def case(tmp_path):
    """``case(result)``: return a program that writes ``result`` as its own; None: it writes nothing."""

    def build(result=None, code=0):
        path = str(tmp_path / "files" / "again.json")
        writes = "" if result is None else WRITES.format(result=result, path=path)
        return [sys.executable, "-c", f"print('its last words'); {writes}\nimport sys; sys.exit({code})"]

    return build


@pytest.fixture
def record(tmp_path, fake_nsys, training, case):
    """Record a case with a stand-in that has the given behaviour."""
    (tmp_path / "files").mkdir()

    def go(how="whole", result=None, export=training, code=0, **changes):
        done = case(result if result is not None else {"calls_us": [100.0, 100.0]}, code)
        return nsys(**changes).record(fake_nsys(how, export), done, tmp_path / "files")

    return go


def refused(record, *words, **fields) -> str:
    """Return the message of CannotMeasure."""
    with pytest.raises(CannotMeasure) as caught:
        record(*words, **fields)
    return str(caught.value)


def test_a_whole_report_is_read_and_kept(record, tmp_path):
    timeline, again, notes = record()
    assert (len(timeline.calls), len(again["calls_us"]), notes) == (2, 2, [])
    assert (tmp_path / "files" / "report.nsys-rep").read_text() == "a report"
    command = (tmp_path / "files" / "command.txt").read_text()
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop --sample=none" in command
    assert command.count(" -- ") == 0


def test_a_program_that_fails_after_its_calls_has_been_seen_all_the_same(record):
    assert len(record(code=7)[0].calls) == 2


def test_a_case_that_cannot_be_run_again_says_why(record):
    error = {"error": "oom in phase inputs: OutOfMemoryError: CUDA out of memory"}
    said = refused(record, result=error, code=1)
    assert said == f"the case could not be run again under nsys: {error['error']}"


def test_a_case_that_dies_is_told_by_its_exit_code_and_last_words(record, case, tmp_path, fake_nsys):
    with pytest.raises(CannotMeasure) as caught:
        nsys().record(fake_nsys(), case(code=139), tmp_path / "files")
    assert "under nsys the case exited with code 139 before its calls were done: its last words" in str(caught.value)


def test_what_an_earlier_session_left_is_not_taken_for_this_ones(record, case, tmp_path, fake_nsys):
    for name in ("again.json", "report.nsys-rep", "summary.txt", "copies.csv"):
        (tmp_path / "files" / name).write_text('{"calls_us": [1.0]}')
    with pytest.raises(CannotMeasure, match="before its calls were done"):
        nsys().record(fake_nsys(), case(), tmp_path / "files")
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"command.txt", "nsys.log", "report.nsys-rep"}
    assert refused(record, "never opened").startswith("nsys wrote no report")


@pytest.mark.parametrize(
    ("how", "words"),
    {
        "usage": "nsys refuses its options: unrecognised option '--bogus=1'; see measure.nsys.args",
        "no importer": "its QdstrmImporter is missing (install a complete Nsight Systems)",
        "never opened": "the range to capture was never opened",
        "range ends it": "exited with code 143 before its calls were done: Capture range ended in the application.",
        "locked": "nsys export could not read the report: database is locked",
    }.items(),
)
def test_each_failure_is_one_sentence(record, case, tmp_path, fake_nsys, training, how, words):
    if how in ("usage", "range ends it"):  # the case does not come to its result
        with pytest.raises(CannotMeasure) as caught:
            nsys().record(fake_nsys(how), case(), tmp_path / "files")
        said = str(caught.value)
    else:
        said = refused(record, how)
    assert words in said
    assert "\n" not in said


def test_one_that_takes_too_long_is_ended_and_what_it_wrote_is_kept(record, tmp_path):
    said = refused(record, "hangs", limit_s=3.0)  # in which it is ready for a signal
    assert said.startswith("it was not done after 3 s and was ended")
    assert "launcher.measure_limit_s" in said
    assert (tmp_path / "files" / "report.nsys-rep").read_text() == "what there was"


def test_a_report_without_gpu_work_says_so(record, export):
    export.range("call", 0, 10)
    assert refused(record, export=export).startswith("no GPU work was seen in the calls")


def test_work_outside_of_the_calls_is_none(record, export):
    export.range("call", 0, 10)
    export.range("warm_up", 20, 30)
    export.kernel("k", 22, 23, 1)
    assert refused(record, export=export).startswith("no GPU work was seen in the calls")


def test_nsyss_own_reason_goes_with_it(record, export):
    export.add("DIAGNOSTIC_EVENT", 3, "A client is already subscribed to CUPTI")
    assert "(A client is already subscribed to CUPTI)" in refused(record, export=export)


def test_graphs_that_were_traced_as_a_whole_say_which_option_does_it(record, export):
    export.range("call", 0, 10)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 1, 2)
    assert "measure.nsys.args traces CUDA graphs as a whole" in refused(record, export=export)


def test_a_report_without_ranges_says_so(record, export):
    export.kernel("k", 1, 2, 3)
    assert refused(record, export=export).startswith("it recorded no NVTX ranges")


def test_no_option_is_given_twice(fake_nsys):
    """nsys refuses an option that is given twice, and an end of a range without the range."""
    options, _ = profile_options(fake_nsys(), "light", ("--sample=process-tree", "--trace=cuda,nvtx,osrt"))
    assert options[-2:] == ["--sample=process-tree", "--trace=cuda,nvtx,osrt"]
    assert not {"--sample=none", "--trace=cuda,nvtx"} & set(options)
    assert "--capture-range-end=stop" not in profile_options(fake_nsys(), "light", ("--capture-range=none",))[0]


def test_an_option_that_this_version_does_not_have_is_left_out_and_told(fake_nsys):
    options, notes = profile_options(fake_nsys("renamed"), "full", ("--whatever=1",))
    assert "--cuda-graph-trace=node" not in options
    assert options[-1] == "--whatever=1"  # what was asked for is passed on
    assert notes == ["this nsys has no --cuda-memory-usage", "this nsys has no --cuda-graph-trace"]


def test_full_looks_at_the_whole_program(fake_nsys):
    options = " ".join(profile_options(fake_nsys(), "full", ())[0])
    assert "capture-range" not in options
    assert "osrt" in options


def test_nsyss_own_signs_in_a_path_are_taken_for_what_they_are(tmp_path, fake_nsys, training):
    folder = tmp_path / "100%h"
    folder.mkdir()
    writes = WRITES.format(result={"calls_us": [1.0, 1.0], "n": 2}, path=str(folder / "again.json"))
    nsys().record(fake_nsys("whole", training), [sys.executable, "-c", writes], folder)
    assert f"--output={tmp_path}/100%%h/report" in (folder / "command.txt").read_text()
    assert (folder / "report.nsys-rep").is_file()


@pytest.mark.parametrize("word", ["cuda", "-tcuda"])
def test_a_word_that_is_no_long_option_is_refused(word):
    """nsys takes the first for the program to run, and refuses the second beside the preset's --trace."""
    with pytest.raises(BadInput, match=f"args: '{word}' is not a long option of nsys profile"):
        schema.build(Nsys, FIELDS | {"args": [word]}, "measure.nsys")


def test_a_cpu_case_is_sent_elsewhere(tmp_path):
    with pytest.raises(CannotMeasure, match="use measure=profile there"):
        nsys().measure(Call(tuple), MeasureContext("cpu", None, tmp_path))


def test_without_nsys_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.device.tools.find_tool", lambda name, path: None)
    with pytest.raises(CannotMeasure, match="nsys was not found: install Nsight Systems"):
        nsys().measure(Call(tuple), MeasureContext("cuda", None, tmp_path))
    with pytest.raises(CannotMeasure, match="/nowhere was not found"):
        nsys(path="/nowhere").measure(Call(tuple), MeasureContext("cuda", None, tmp_path))


def test_a_case_is_run_again_under_it_and_becomes_figures_tables_and_a_summary(
    tmp_path, fake_nsys, training, monkeypatch
):
    """The case really runs, on the CPU; the export of nsys is made by hand."""
    monkeypatch.setattr("runner.measure.nsys.alone_us", lambda call, count: 1.0)  # it needs a GPU
    program = fake_nsys("whole", training)
    case = CaseRecord(Choice("gelu", GELU), Choice("torch", {}), (Choice("nsys", FIELDS),), Settings("cpu", 0))
    context = MeasureContext("cuda", case, tmp_path / "files", {"n_kernels": 5}, AGAIN)
    figures = nsys(path=program).measure(Call(tuple), context)
    again = json.loads((tmp_path / "files" / "again.json").read_text())
    assert len(again["calls_us"]) == 2
    assert figures["nsys_gpu_us"] == 47.0
    assert figures["nsys_slowdown"] == pytest.approx(sum(again["calls_us"]) / 2)
    assert figures["nsys_note"] == ""
    kept = {path.name for path in (tmp_path / "files").iterdir()}
    assert kept >= {
        "report.nsys-rep",
        "command.txt",
        "summary.txt",
        "nsys.log",
        "kernels.csv",
        "parts.csv",
        "api.csv",
    }
    text = (tmp_path / "files" / "summary.txt").read_text()
    assert text.startswith("Nsight Systems 2024.2.3.38, preset light; means of 2 calls:")
    assert (tmp_path / "files" / "command.txt").read_text().strip() in text
    other = MeasureContext("cuda", case, tmp_path / "files", {"n_kernels": 6}, AGAIN)
    note = nsys(path=program).measure(Call(tuple), other)["nsys_note"]
    assert note == "kernels, copies and fills of a call: 5 here, 6 by the benchmark"

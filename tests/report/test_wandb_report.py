"""``runner report wandb``: the Report that arrives at a server, and what is there without one."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from runner import bench, cli
from runner.findings.past import read_run
from runner.records.row import Row
from runner.report import to_wandb
from runner.report.wandb.state import Address, State, write_state

pytest.importorskip("wandb_workspaces")

KEY = "0123456789abcdef" * 3
NASTY = "<script>|`x`"


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def report(capsys, *words):
    code = cli.main(["report", "wandb", *map(str, words)])
    out, err = capsys.readouterr()
    return SimpleNamespace(code=code, lines=out.splitlines(), err=err)


@pytest.fixture
def place(home, monkeypatch):
    """The current folder, outside the run's."""
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def server(loopback, monkeypatch, place):
    with loopback() as running:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", running.url)
        yield running


def texts(blocks):
    """All text of a report."""
    return json.dumps(blocks)


def grid(spec):
    (found,) = [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]
    return found


def panels(spec, kind):
    return [panel["config"] for panel in grid(spec)["panelBankSectionConfig"]["panels"] if panel["viewType"] == kind]


# Without a server


def test_without_a_key_one_line_says_how_to_publish_it(folder, place, capsys):
    before = files(folder)
    done = report(capsys, folder, "--title", "Both of them")
    assert done.lines == ["W&B: not published (no API key); wandb login, then run this again"]
    assert (done.code, done.err) == (1, "")
    assert files(folder) == before


@pytest.mark.parametrize("mode", ["offline", pytest.param("disabled", marks=pytest.mark.long)])
def test_an_offline_mode_publishes_nothing(folder, place, capsys, monkeypatch, mode):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", mode)
    (line,) = report(capsys, "last", f"output_dir={folder.parents[1]}").lines
    assert line == f"W&B: not published (WANDB_MODE={mode}); unset WANDB_MODE, then run this again"


def test_a_run_without_a_row_has_no_report(made, tmp_path, place, capsys):
    empty = made.finished(tmp_path / "2025-01-31" / "empty", [])
    done = report(capsys, empty)
    assert (done.code, done.lines) == (2, [])
    assert done.err == f"runner: {empty}: no case is done; resume={empty} runs them\n"


def test_a_server_that_refuses_is_told_in_its_own_words(folder, place, capsys, loopback, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with loopback("401") as refusing:
        monkeypatch.setenv("WANDB_BASE_URL", refusing.url)
        done = report(capsys, folder)
    assert done.code == 1
    assert done.lines[-1].startswith("W&B: not published (not today")
    assert KEY not in "".join(done.lines) + done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["{folder}", "--title", "x" * 129], "--title: give 1 to 128 characters"),
        (["{folder}", "--output", "my.json"], "--output: this report is at W&B; report html writes a file"),
        (["{folder}", "--project", "a/b"], "log.wandb.project: 'a/b' is not allowed"),
    ],
)
def test_a_mistake_costs_one_line(folder, place, capsys, words, said):
    done = report(capsys, *(word.format(folder=folder) for word in words))
    assert (done.code, done.lines) == (2, [])
    assert said in done.err
    assert done.err.count("\n") == 1


# With a server


def test_a_run_that_was_never_logged_is_uploaded_and_the_report_is_on_it(folder, place, server, capsys):
    before = files(folder)
    done = report(capsys, folder, "--title", "Is it fast? #1", "--project", "mine")
    assert (done.code, done.err) == (0, "")
    assert files(folder) == before
    assert not list(place.iterdir())  # nor is anything left in the home folder
    run, link = done.lines
    address = Address.of(run.removeprefix("W&B run 2025-01-31/10-11-12-both: "))
    assert (address.entity, address.project) == ("me", "mine")
    assert link == f"W&B Report: {server.url}/me/mine/reports/Is-it-fast-1--Vmlldzox"
    for media in ("table/rows", *(["html/page"] if find_spec("vl_convert") else [])):
        assert any(name.startswith(f"/put/media/{media}") for name in server.uploads), media
    (view,) = server.reports
    assert (view["entityName"], view["projectName"]) == ("me", "mine")
    assert (view["type"], view["displayName"]) == ("runs", "Is it fast? #1")
    spec = json.loads(view["spec"])
    (runs,) = grid(spec)["runSets"]
    assert runs["project"] == {"id": "internal-p", "name": "mine", "entityName": "me"}
    (only,) = runs["filters"]["filters"]
    assert (only["key"], only["value"]) == ({"section": "run", "name": "name"}, [address.id])
    logged = {key for body in server.streamed for key in history(body)}
    for plot in panels(spec, "Run History Line Plot"):  # every line of a panel is a key of the run
        assert {plot["xAxis"], *plot["metrics"]} <= logged, plot["chartTitle"]
    summary = json.loads(server.uploads["/put/wandb-summary.json"])
    for plot in panels(spec, "Bar Chart"):
        assert set(plot["metrics"]) <= set(summary)
    assert f'"url": "{address.url}"' in texts(spec["blocks"])


def test_a_saved_bench_has_a_report_too(place, server, capsys, tmp_path):
    sweep = bench(lambda x: x.exp(), make=torch.randn, sizes=[2, 4])
    done = report(capsys, sweep.save("sweep", tmp_path))
    assert (done.code, done.err) == (0, "")
    (view,) = server.reports
    assert "sweep: time (us)" in view["spec"]


def history(body):
    for line in body.get("files", {}).get("wandb-history.jsonl", {}).get("content", ()):
        yield from json.loads(line)


def logged(folder, url):
    """``folder`` as a run that log=wandb has uploaded."""
    name = "wandb/offline-run-1"
    (folder / name).mkdir(parents=True)
    (folder / name / "run-1.wandb.synced").touch()
    write_state(folder, State((name,), url=url, journal_bytes=(folder / "rows.jsonl").stat().st_size))
    return Address.of(url)


def test_a_run_that_has_gone_on_since_it_was_uploaded_is_not_taken_as_it_was(folder):
    options = SimpleNamespace(entity=None, project=None)
    there = logged(folder, "https://example.org/us/theirs/runs/abc")
    assert to_wandb.known(read_run(folder), options) == there
    assert to_wandb.known(read_run(folder), SimpleNamespace(entity=None, project="mine")) is None
    with open(folder / "rows.jsonl", "a") as file:
        file.write('{"record":"stopped","keys":[]}\n')
    assert to_wandb.known(read_run(folder), options) is None


def test_what_the_report_says_in_words(folder, server, made, capsys):
    server.known = {"cases/total": 18}
    other = made.finished(folder.parent / "12-00-00-other", made.sweep()[:9])
    server.known["cases/total"] = len(read_run(other).lines)
    done = report(capsys, other, "--draft")
    assert done.lines[-1].startswith("W&B Report (draft): ")
    assert not server.runs  # the server has this run with as many cases
    (view,) = server.reports
    assert view["type"] == "runs/draft"
    spec = json.loads(view["spec"])
    words = texts(spec["blocks"])
    for heading in ("Conclusion", "What was asked", "Charts", "Results", "Environment"):
        assert f'"text": "{heading}"' in words
    assert "compiled is the fastest at 3 of" in words
    assert '"python -m runner"' in words
    tables = [block["content"] for block in spec["blocks"] if block["type"] == "markdown-block"]
    assert any("| gelu cols=256 |" in text for text in tables)
    assert any("| device | cpu |" in text for text in tables)


def test_a_package_that_cannot_be_imported_is_named(folder, place, server, capsys, monkeypatch):
    logged(folder, f"{server.url}/us/theirs/runs/abc")
    package = place / "packages" / "wandb_workspaces"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no such luck')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    found = report(capsys, folder)
    assert (found.code, len(found.lines)) == (1, 1)
    assert "not published (the W&B client exited with code 1: ImportError: no such luck)" in found.lines[0]


def test_a_run_without_a_time_has_a_report(made, tmp_path, server, capsys):
    lost = Row(case=made.case("gelu", "torch", {"cols": 1}), status="lost", reason="the runner was killed")
    folder = made.finished(tmp_path / "2025-01-31" / "lost", [lost])
    logged(folder, f"{server.url}/us/theirs/runs/abc")
    assert report(capsys, folder).code == 0
    spec = json.loads(server.reports[-1]["spec"])
    assert "the runner was killed" in texts(spec["blocks"])
    assert not panels(spec, "Run History Line Plot")


def test_runs_side_by_side_that_were_logged_before(folder, server, made, capsys):
    first = logged(folder, f"{server.url}/us/theirs/runs/abc")
    rows = [made.timed(made.case("gelu", NASTY, {"rows": 8, "cols": cols}), cols * 2.0) for cols in (256, 4096)]
    other = made.finished(folder.parent / f"12-00-00-{NASTY[:8]}", rows)
    server.known = {"cases/total": 2}
    done = report(capsys, folder, other)
    assert done.code == 0, done.lines
    (second,) = [Address.of(text.rpartition(": ")[2]) for text in done.lines if text.startswith("W&B run ")]
    assert not server.runs
    spec = json.loads(server.reports[-1]["spec"])
    assert [one["filters"]["filters"][0]["value"] for one in grid(spec)["runSets"]] == [[first.id], [second.id]]
    (times,) = [one for one in panels(spec, "Run History Line Plot") if one["chartTitle"] == "gelu: time (us)"]
    assert {"gelu/time_us/torch", f"gelu/time_us/{NASTY}"} <= set(times["metrics"])
    assert panels(spec, "Run Comparer") == [{"diffOnly": "split"}]
    markdown = [block["content"] for block in spec["blocks"] if block["type"] == "markdown-block"]
    assert any(NASTY in text.replace("\\", "") for text in markdown)
    assert not any("<script" in text.replace("\\<", "") for text in markdown)  # text, not markup

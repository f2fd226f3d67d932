"""The page: it needs nothing from elsewhere, no text in it is code, and a browser shows it wide and narrow."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from runner.cli.report import main
from runner.findings.past import read_run
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.columns import VERDICTS
from runner.records.untrusted import visible
from runner.report import to_html
from runner.report.charts import charts
from runner.store import journal

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """What a browser makes of a page: elements with their attributes, rows of tables, texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.rows, self.texts, self.inside = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = "" if tag in ("script", "style") else self.inside
        if tag == "table":
            self.rows.append([])

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.texts.append(data)
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def thousand(tmp_path_factory, made, made_up):
    """The folder of a run of 1000 rows, some with names and reasons that are code if they are not escaped."""
    folder = tmp_path_factory.mktemp("thousand") / "outputs" / "2026-01-31" / "10-11-12-thousand"
    return made.finished(folder, made_up.rows(1000))


@pytest.fixture(scope="module")
def text(thousand):
    return to_html.page([read_run(thousand)])


def test_a_page_of_1000_rows_is_small_and_soon_written(thousand, tmp_path, capsys):
    began, cpu = time.perf_counter(), time.process_time()
    assert main(["html", str(thousand), "--output", str(tmp_path / "page.html")]) == 0
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").stat().st_size <= 2_000_000
    assert min(seconds, cpu_seconds) <= 5


def test_the_page_asks_for_nothing_from_elsewhere(text):
    page = Page(text)
    policy = [each["content"] for tag, each in page.elements if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert "default-src 'none'" in policy[0]
    assert not re.search(r"https?:|//|\*", policy[0])
    for tag, each in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            assert (each.get(name) or "#").startswith(("#", "data:")), (tag, each)  # no remote is known here
    own = text[text.index("<style>") : text.index("</style>")] + page.scripts[-1]
    assert not re.search(r"https?:|url\(|\bfetch\(|\bimport\b|XMLHttpRequest|WebSocket|sendBeacon", own)


def test_no_text_of_a_run_is_code(text, made_up):
    page = Page(text)
    assert [each.get("id", "") for tag, each in page.elements if tag == "script"] == ["data", "library", ""]
    assert not [each for tag, each in page.elements if tag == "img"]
    assert not [name for _, each in page.elements for name in each if name.startswith("on")]
    assert any(made_up.HOSTILE in part for part in page.texts)
    assert any(visible(made_up.REASON) in part for row in page.rows for part in row)
    assert made_up.HOSTILE not in text


def test_every_case_stands_in_the_table_with_its_verdict_reason_and_command(text, thousand):
    (heads, *rows), run = [row for row in Page(text).rows if len(row) > 10], read_run(thousand)
    place = {name: heads.index(name) for name in ("implementation", "time", "95 % interval", "verdict", "reason")}
    assert len(rows) == len(run.lines) == 1000
    assert all("python -m runner workload=" in row[-1] for row in rows)
    assert {row[place["verdict"]].strip() for row in rows} == {
        "ok",
        "wrong",
        "error",
        "unsupported",
        "contended",
        "not_converged",
    }
    wrong = [row for row in rows if row[place["verdict"]] == "wrong"]
    assert all("3 of 8192 elements beyond tolerance" in row[place["reason"]] for row in wrong)
    assert any(re.fullmatch(r"\d\.\d{3}x to \d\.\d{3}x", row[place["95 % interval"]]) for row in rows)
    assert sum(row[place["implementation"]].startswith("★") for row in rows) > 50


def test_the_charts_of_the_page_are_those_of_the_images(text, thousand):
    packed = next(script for script in Page(text).scripts)
    drawn = json.loads(gzip.decompress(base64.b64decode(packed)))
    found = charts([read_run(thousand)])
    assert [each["spec"] for each in drawn] == [json.loads(json.dumps(chart.spec)) for chart in found]
    places = [each for _, each in Page(text).elements if "data-chart" in each]
    assert [place["aria-label"] for place in places] == [
        chart.title for chart in sorted(found, key=lambda one: one.kind == "roofline")
    ]


def test_several_runs_stand_side_by_side(tmp_path, made, made_up):
    first, second = (made_up.rows(only="matmul", scale=scale) for scale in (1.0, 1.2))
    shorter = (Choice("benchmark", {"samples": 20}),)  # no other problem for that
    second = [replace(row, case=replace(row.case, measures=shorter)) for row in second]
    folders = [
        made.finished(tmp_path / "2026-01-31" / f"10-00-0{place}-run", rows)
        for place, rows in enumerate((first, second))
    ]
    page = Page(to_html.page([read_run(folder) for folder in folders]))
    (between,) = [part for part in page.texts if "10-00-01-run against 10-00-00-run" in part]
    assert re.search(r" [5-6]\d common cases: [5-6]\d slower, ", between)
    heads, *rows = [row for row in page.rows if len(row) > 10]
    of = [row[heads.index("run")] for row in rows]
    assert set(of) == {"10-00-00-run", "10-00-01-run"}
    assert of[:12] == ["10-00-00-run"] * 6 + ["10-00-01-run"] * 6  # the six implementations of the same problem
    (environment,) = [row for row in page.rows if row[-2:] == ["10-00-00-run", "10-00-01-run"]]
    assert environment


def test_several_runs_have_one_conclusion_with_what_differs(tmp_path, made):
    times = {"a": {"torch": 10.0, "triton": 5.0}, "b": {"torch": 10.0, "triton": 20.0}}
    folders = [
        made.finished(
            tmp_path / "2026-01-31" / f"10-00-0{place}-{name}",
            [
                made.timed(made.case("gelu", impl, {"cols": cols}), us * cols, samples=20, converged=True)
                for cols in (8, 16)
                for impl, us in (each if cols == 8 else times["a"]).items()
            ],
        )
        for place, (name, each) in enumerate(times.items())
    ]
    runs = [read_run(folder) for folder in folders]
    texts = " ".join(Page(to_html.page(runs)).texts)
    differs = "gelu: the fastest is the same at 1 of 2 problems that several runs have, triton at 1."
    assert differs in texts
    assert "gelu cols=8: triton in 10-00-00-a; torch in 10-00-01-b" in texts
    assert texts.index(differs) < texts.index("10-00-00-a alone")
    assert main(["md", *map(str, folders), "--output", str(tmp_path / "both.md")]) == 0
    assert differs in (tmp_path / "both.md").read_text().replace("\\", "")


def test_a_title_an_author_and_a_note_in_markdown_head_the_page(thousand, tmp_path, monkeypatch):
    note = "See **this**:\n\n- <script>alert(1)</script>\n- [x](javascript:alert(2))"
    words = [
        "--title",
        "A <b>title</b>",
        "--author",
        "Ada & Co",
        "--note",
        note,
        "--output",
        str(tmp_path / "page.html"),
    ]
    monkeypatch.setattr(to_html, "git", lambda *_: "git@example.org:team/project.git\n")
    to_html._docs.cache_clear()
    assert main(["html", str(thousand), *words]) == 0
    to_html._docs.cache_clear()
    text = (tmp_path / "page.html").read_text()
    assert "<title>A &lt;b&gt;title&lt;/b&gt;</title>" in text
    assert "by Ada &amp; Co" in text
    assert "<strong>this</strong>" in text
    page = Page(text)
    assert [each.get("id", "") for tag, each in page.elements if tag == "script"] == ["data", "library", ""]
    links = [each["href"] for tag, each in page.elements if tag == "a" and not each["href"].startswith("#")]
    assert links[0] == "https://example.org/team/project/blob/HEAD/docs/columns.md"
    assert not any("javascript" in link for link in links)


def test_profiles_are_shown_as_text_and_images_cannot_run(tmp_path, made):
    row = made.timed(made.case("gelu", "torch", {"cols": 8}), 2.0)
    files = tuple(f"files/{row.case.key}/profile/{name}" for name in ("summary.txt", "flame.svg", "linked.svg"))
    folder = made.finished(tmp_path / "o" / "2026-01-31" / "10-00-00-run", [replace(row, files=files)])
    place = folder / "files" / row.case.key / "profile"
    place.mkdir(parents=True)
    (place / "summary.txt").write_text("aten::gelu <b>93 %</b>")
    (place / "flame.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(3)</script></svg>")
    (tmp_path / "secret.svg").write_text("<svg>secret</svg>")
    (place / "linked.svg").symlink_to(tmp_path / "secret.svg")
    page = Page(to_html.page([read_run(folder)]))
    assert "aten::gelu <b>93 %</b>" in page.texts
    (image,) = [each for tag, each in page.elements if tag == "img"]
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert b"alert(3)" in base64.b64decode(image["src"].partition(",")[2])  # an image runs no script
    assert base64.b64encode(b"secret").decode() not in str(page.elements)


@pytest.mark.parametrize("form", ["html", "svg"])
def test_without_vl_convert_one_line_says_what_to_install(thousand, monkeypatch, form):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(BadInput, match=r"pip install 'kernel-runner\[report\]'"):
        main([form, str(thousand)])


@pytest.mark.parametrize("form", ["html", "png", "svg", "md"])
def test_mistakes_are_one_line(form, tmp_path, made, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="there is no such folder"):
        main([form, "nowhere"])
    with pytest.raises(BadInput, match="there is no run under outputs"):
        main([form, "last"])
    with pytest.raises(BadInput, match="--bogus"):
        main([form, "nowhere", "--bogus"])
    folder = made.finished(tmp_path / "outputs" / "2026-01-31" / "10-00-00-run", made.sweep()[:1])
    path = folder / journal.NAME
    path.write_text(path.read_text().replace(f'"format":{journal.FORMAT}', '"format":99'))
    with pytest.raises(BadInput, match="99"):
        main([form, "last"])


def test_an_unknown_format_is_named_with_those_that_there_are():
    with pytest.raises(BadInput, match=r"svg, wandb; python -m runner show --format latex writes the table so$"):
        main(["latex"])
    with pytest.raises(BadInput, match="report htm: no such format; did you mean html"):
        main(["htm", "last"])
    with pytest.raises(BadInput, match="write a format before the run, as in report html last"):
        main(["last"])
    with pytest.raises(BadInput, match="give a format, one of: html, md, png, svg, wandb"):
        main([])


def test_damaged_records_are_counted_and_the_rest_is_shown(folder, tmp_path, capsys):
    path = folder / journal.NAME
    path.write_text(path.read_text() + '{"record":"row","case":{}}\n')
    assert main(["html", str(folder), "--output", str(tmp_path / "page.html")]) == 0
    assert "1 record of its journal cannot be read: damaged or cut off" in capsys.readouterr().err
    assert "unreadable records left out: 1" in (tmp_path / "page.html").read_text()


def test_a_run_with_no_time_has_a_page_without_charts(tmp_path, made):
    row = next(row for row in made.sweep() if row.status == "error")
    folder = made.finished(tmp_path / "o" / "2026-01-31" / "10-00-00-run", [row])
    page = " ".join(Page(to_html.page([read_run(folder)])).texts)
    assert "no correct result has a time" in page
    assert "There is no chart" in page


def test_markdown_has_the_conclusion_and_the_table(folder, capsys):
    assert main(["md", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.md'}\n"
    markdown = (folder / "report.md").read_text()
    assert "gelu: compiled is the fastest at 3 of 3 problems" in markdown
    assert "| gelu " in markdown


# Charts are drawn one after another, which may take a while on a busy machine.
PROBE = """<script>
const places = () => [...document.querySelectorAll(".chart")].filter(one => one.clientWidth);
const drawnOrLate = tries => places().every(one => one.querySelector("svg.marks")) || !tries ? probe()
  : setTimeout(() => drawnOrLate(tries - 1), 100);
const probe = () => {
  const shown = () => [...document.querySelectorAll("#rows tbody tr:not(.problem)")].filter(row => !row.hidden);
  const heads = [...document.querySelectorAll("#rows th[scope=col]")], tip = document.getElementById("tip");
  const drawn = [...document.querySelectorAll(".chart svg.marks")];
  const head = heads.find(one => one.textContent === "time");
  const told = (cell, kind) => { cell.dispatchEvent(new Event(kind, {bubbles: true})); return tip.textContent; };
  const odd = shown().map(row => row.cells[2]).find(cell => cell.textContent === "contended");
  const long = shown().map(row => row.querySelector(".why")).find(cell => cell.textContent.includes("beyond"));
  const found = {
    width: innerWidth, content: document.documentElement.scrollWidth, count: count.textContent, errors: window.errors,
    charts: drawn.length, places: places().length, back: getComputedStyle(document.body).backgroundColor,
    wide: drawn.filter(one => one.getBoundingClientRect().right > innerWidth).length,
    requests: performance.getEntriesByType("resource").length,
    verdict: shown()[0].cells[2].getBoundingClientRect().right,
    tall: Math.max(...shown().map(row => row.clientHeight)), font: parseFloat(getComputedStyle(head).fontSize),
    told: [told(heads.find(one => one.textContent === "err/tol"), "mouseover"), told(odd, "click"),
      told(long, "click")],
    nothing: told(document.body, "mouseover"), headings: document.querySelectorAll("tr.problem").length,
  };
  document.querySelector(".copy").click();
  head.click();
  const numbers = shown().map(row => row.cells[head.cellIndex].dataset.v).filter(Boolean).map(Number);
  found.sorted = numbers.length > 100 && numbers.every((one, place) => !place || numbers[place - 1] <= one);
  found.problem = shown()[0].querySelector(".p").clientWidth > 0;
  filters.elements.text.value = "softmax triton cols=4096";
  filters.dispatchEvent(new Event("input"));
  found.filtered = shown().every(row => row.textContent.includes("softmax")) && count.textContent;
  head.click();
  head.click();
  found.left = [...document.querySelectorAll("tr.problem")].filter(one => !one.hidden).length;
  setTimeout(() => {
    found.copied = document.querySelector(".copy").textContent;
    top.document.title = JSON.stringify(found);
  }, 300);
};
document.fonts.ready.then(() => setTimeout(() => drawnOrLate(200), 500));
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium here")
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)], ids=["wide-light", "narrow-dark"])
def test_a_browser_shows_sorts_and_filters_it(text, tmp_path, width, dark):
    listen = '<script>window.errors = []; addEventListener("error", one => errors.push(one.message));</script>'
    page = text.replace("<style>", f"{listen}<style>", 1).replace("</body>", PROBE)
    frame = f'<iframe srcdoc="{html.escape(page)}" style="width: {width}px; height: 6000px; border: 0"></iframe>'
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}")  # a window is 500 wide or more
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [*scheme, "--window-size=1500,6000", "--virtual-time-budget=30000", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    found = json.loads(html.unescape(title[1]))
    assert found["errors"] == []
    assert found["requests"] == 0
    assert found["charts"] == found["places"] > 3  # also those that nobody has scrolled to, so that they are printed
    assert found["told"] == [
        "err/tol: largest error as a multiple of its tolerance; at most 1 is correct",
        f"contended: {VERDICTS['contended']}",
        "3 of 8192 elements beyond tolerance",
    ]
    assert found["nothing"] == ""
    assert found["verdict"] <= found["width"]  # name, time and verdict are seen without scrolling sideways
    assert found["tall"] <= (6 if width < 1400 else 2.5) * found["font"]  # a long name wraps; a reason does not
    assert (found["problem"], found["copied"]) == (True, "copied")
    assert found["left"] < found["headings"]
    assert found["count"] == "1000 cases"
    assert found["sorted"] is True
    assert re.fullmatch(r"[1-9]\d? of 1000 cases", found["filtered"])
    assert found["content"] <= found["width"] == width  # only the tables scroll sideways
    assert found["wide"] == 0
    assert found["back"] == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")

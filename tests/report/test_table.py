"""One table in every format: what is marked, left out, and shown as it is."""

from __future__ import annotations

from runner.report.table import Table, draw, facts_table, html_of, latex_of, markdown_of, rich_text, text_of

ROWS = [("first", [["mine", "1 us", "ok"]]), ("second", [["<b>|@team #1", "22 us", "wrong"]])]
TABLE = Table(
    "title",
    ["", "time", "said"],
    ROWS,
    ["a note"],
    frozenset({0, 2}),
    drop={1: 1},
    marks={0: {0: "best"}, 1: {2: "bad"}},
)


def test_text_has_headings_a_rule_and_aligned_columns():
    assert text_of(TABLE).splitlines() == [
        "title",
        "                 time   said",
        " ────────────────────────────",
        " first",
        " mine            1 us   ok",
        " second",
        " <b>|@team #1   22 us   wrong",
        "",
        "a note",
    ]


def test_a_narrow_table_leaves_columns_out_and_keeps_the_marks():
    parts, dropped = draw(TABLE, 25)
    text = rich_text(parts)
    assert dropped == [1]
    assert max(map(len, text.plain.splitlines())) <= 25
    styled = {text.plain[span.start : span.end].strip(): span.style for span in text.spans}
    assert (styled["mine"], styled["wrong"]) == ("bold green", "bold red")


def test_no_text_is_markup():
    assert r"| second | \<b\>\|@&#8203;team #&#8203;1 | 22 us | wrong |" in markdown_of(TABLE)
    assert "| first | **mine** | 1 us | ok |" in markdown_of(TABLE)
    assert r"\textless{}b\textgreater{}\textbar{}@team \#1 & 22 us & wrong \\" in latex_of(TABLE)
    assert "&lt;b&gt;|@team #1<td>22 us<td class=bad>wrong" in html_of(TABLE)


def test_facts_that_differ_are_marked():
    table = facts_table([("a", {"gpu": "H100", "torch": "2.9"}), ("b", {"gpu": "H200", "torch": "2.9"})])
    assert table.rows == [["gpu", "H100", "H200"], ["torch", "2.9", "2.9"]]
    assert table.marks == {0: {1: "differs", 2: "differs"}}

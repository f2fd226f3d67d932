"""Every example of docs/api.md runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.timing.verdict import GRAVITY

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
EXAMPLES = [
    pytest.param(
        code,
        id=f"{section.splitlines()[0]} {place}".replace("`", ""),
        marks=[pytest.mark.gpu] if code.startswith("# needs a GPU") else [],
    )
    for section in SECTIONS
    for place, code in enumerate(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE), 1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs(code, brief, tmp_path):
    file = tmp_path / "example.py"  # Triton reads the source of a kernel
    file.write_text(code, encoding="utf-8")
    names = {"__name__": "example", "__file__": str(file)}
    exec(compile(code, str(file), "exec"), names)
    for name, function in names.items():
        if name.startswith("test_"):
            failed = ""
            try:
                function()
            except AssertionError as error:
                failed = str(error)
            assert "slower" in failed or not failed  # so few samples on a busy machine may say so


def test_every_cell_of_the_notebook_runs_and_the_results_are_shown_in_it(brief):
    cells = json.loads((ROOT / "docs" / "bench.ipynb").read_text(encoding="utf-8"))["cells"]
    names = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["result"]["spelled_out"].correct
    assert [(one.name, one.size) for one in names["sweep"]][:2] == [("torch", 2**12), ("spelled_out", 2**12)]
    shown = ["".join(output["data"].get("text/html", "")) for output in outputs(cells)]
    assert sum("<table" in html for html in shown) == 4
    checked = [line for line in repr(names["result"]).splitlines() if line.startswith("checked")]
    assert len(checked) == 1
    assert any(f"{checked[0]}\n" in "".join(output["data"]["text/plain"]) + "\n" for output in outputs(cells))


def outputs(cells):
    """The outputs stored in a notebook."""
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_there_are_twelve_examples():
    assert len(EXAMPLES) >= 12


def test_the_page_explains_every_verdict_that_there_can_be():
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert explained == set(GRAVITY) - {"debug", "contradicted", "fallback"}  # those of the command

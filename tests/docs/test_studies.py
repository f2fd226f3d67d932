"""Each experiment with a question has a page that asks it, and the index names the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
STUDIES = {
    path.stem: asked
    for path in sorted(ROOT.glob("conf/experiment/*.yaml"))
    if (asked := yaml.safe_load(path.read_text(encoding="utf-8"))).get("question")
}
INDEX = (ROOT / "docs" / "studies" / "README.md").read_text(encoding="utf-8")
MARK = "\n<!-- What follows is written by docs/study.py from a run. -->\n"


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_a_page_and_a_line_in_the_index(name):
    question = STUDIES[name]["question"]
    page = (ROOT / "docs" / "studies" / f"{name}.md").read_text(encoding="utf-8")
    assert STUDIES[name]["name"] == name
    assert f"\n**{question}**\n" in page
    assert f"python -m runner +experiment={name} -m\n" in page
    assert "\n## How to read it\n" in page
    assert page.count(MARK) == 1
    assert f"| [{name}]({name}.md) | {question} |" in INDEX


def test_every_page_belongs_to_a_study():
    assert {page.stem for page in ROOT.glob("docs/studies/*.md")} == {"README", *STUDIES}

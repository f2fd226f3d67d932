"""Write what a run measured into the page of its study: the conclusion, a chart and the table.

    python docs/study.py RUN...

RUN is the folder of a run of ``+experiment=<name>``. The part of ``docs/studies/<name>.md`` below the mark is replaced,
and so is ``docs/images/study-<name>.svg``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runner.findings.conclusion import answers  # noqa: E402
from runner.findings.past import read_runs  # noqa: E402
from runner.findings.run import Run  # noqa: E402
from runner.records.bad_input import BadInput  # noqa: E402
from runner.report.case_table import case_table  # noqa: E402
from runner.report.charts import charts  # noqa: E402
from runner.report.images import convert  # noqa: E402
from runner.report.table import escaped, markdown_of  # noqa: E402

OF_ALL = ("$schema", "background", "padding", "config")  # of a spec, beside its views
MARK = "<!-- What follows is written by docs/study.py from a run. -->"


def measured(run: Run, image: str) -> str:
    """Return what ``run`` measured, as Markdown; ``image`` is the address of its chart, "" for none."""
    device = ", ".join(dict.fromkeys(row.device for row in run.rows if row.device))
    facts = run.environment
    packages = facts.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "triton") if packages.get(name))
    known = [device, str(facts.get("started", ""))[:10], versions, f"commit {run.commits}" if run.commits else ""]
    said = "\n".join(f"- {escaped(one)}" for one in answers(run))
    parts = ["## Measured", ", ".join(filter(None, known)) + ".", said]
    parts += [f"![{run.plan.name}]({image})"] if image else []
    return "\n\n".join([*parts, markdown_of(case_table(run, run.lines)).strip()]) + "\n"


def image_of(run: Run) -> dict[str, Any] | None:
    """Return the spec of the study's chart, or of two side by side with one scale if both have the most points.

    It is a roofline or memory if the analyses ask for that, else the times. None: nothing to draw.
    """
    asked = {one.name: one.fields.get("column") for one in reversed(run.plan.conclusion)}  # the first of a name counts
    kind = "roofline" if "roofline" in asked else "memory" if "peak_mem_bytes" in asked.values() else "time"
    drawn = [one for one in charts([run]) if one.kind == kind]
    most = max((len(one.data) for one in drawn), default=0)
    first, *others = [one.whole() for one in drawn if len(one.data) == most][:2] or [None]
    if not others:
        return first
    whole = {name: first.pop(name) for name in OF_ALL if name in first}
    second = {name: value for name, value in others[0].items() if name not in OF_ALL}
    second["data"] = {"values": second["data"]["values"]}  # the name belongs to the first
    return whole | {"hconcat": [first, second], "resolve": {"scale": {"y": "shared"}}}


def write(run: Run, docs: Path) -> Path:
    """Write the page of ``run`` below ``docs``, and return its path. Raises BadInput if it is not there."""
    page, image = docs / "studies" / f"{run.plan.name}.md", docs / "images" / f"study-{run.plan.name}.svg"
    if not page.is_file():
        raise BadInput(f"{run.folder}: {run.plan.name} has no page {page}; write it first")
    if drawn := image_of(run):
        image.parent.mkdir(exist_ok=True)
        image.write_text(convert().vegalite_to_svg(drawn), encoding="utf-8")
    text = measured(run, f"../images/{image.name}" if drawn else "")
    page.write_text(f"{page.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n\n{text}", encoding="utf-8")
    return page


if __name__ == "__main__":
    try:
        for run in read_runs(sys.argv[1:] or ["last"]):
            print(write(run, ROOT / "docs"))
    except BadInput as error:
        sys.exit(f"docs/study.py: {error}")

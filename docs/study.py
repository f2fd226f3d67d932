"""Write what a run measured into the page of its study: the conclusion, a chart and the table.

    python docs/study.py RUN...

RUN is the folder of a run of ``+experiment=<name>``. The part of ``docs/studies/<name>.md`` below the mark is replaced,
and so is ``docs/images/study-<name>.svg``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runner.findings.conclusion import answers  # noqa: E402
from runner.findings.past import read_runs  # noqa: E402
from runner.findings.run import Run  # noqa: E402
from runner.records.bad_input import BadInput  # noqa: E402
from runner.report.case_table import case_table  # noqa: E402
from runner.report.charts import Chart, charts  # noqa: E402
from runner.report.images import convert  # noqa: E402
from runner.report.table import escaped, markdown_of  # noqa: E402

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
    parts += [f"![{run.title}]({image})"] if image else []
    return "\n\n".join([*parts, markdown_of(case_table(run, run.lines)).strip()]) + "\n"


def chart(run: Run) -> Chart | None:
    """Return the chart of the study: roofline or memory if its analyses ask for it, else the times; of most points."""
    asked = {one.name: one.fields.get("column") for one in reversed(run.conclusion)}  # the first of a name counts
    kind = "roofline" if "roofline" in asked else "memory" if "peak_mem_bytes" in asked.values() else "time"
    drawn = [one for one in charts([run]) if one.kind == kind]
    return max(drawn, key=lambda one: len(one.data), default=None)


def write(run: Run, docs: Path) -> Path:
    """Write the page of ``run`` below ``docs``, and return its path. Raises BadInput if it is not there."""
    page, image = docs / "studies" / f"{run.title}.md", docs / "images" / f"study-{run.title}.svg"
    if not page.is_file():
        raise BadInput(f"{run.folder}: {run.title} has no page {page}; write it first")
    if drawn := chart(run):
        image.parent.mkdir(exist_ok=True)
        image.write_text(convert().vegalite_to_svg(drawn.whole()), encoding="utf-8")
    text = measured(run, f"../images/{image.name}" if drawn else "")
    page.write_text(f"{page.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n\n{text}", encoding="utf-8")
    return page


if __name__ == "__main__":
    try:
        for run in read_runs(sys.argv[1:] or ["last"]):
            print(write(run, ROOT / "docs"))
    except BadInput as error:
        sys.exit(f"docs/study.py: {error}")

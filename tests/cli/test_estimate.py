"""How long a grid will take: by the rows of earlier runs that are most like its cases."""

from __future__ import annotations

import pytest

from runner.cli.plan import estimate
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Row
from runner.store.journal import Journal


def case(impl="torch", workload="gelu", cols=8, samples=20, replica=0):
    measure = Choice("benchmark", {"samples": samples})
    return CaseRecord(Choice(workload, {"cols": cols}), Choice(impl, {}), (measure,), "auto", 0, replica=replica)


@pytest.fixture
def took(tmp_path):
    """``took((case, device, seconds), ...)``: an earlier run under the folder that it returns."""

    def write(*rows):
        folder = tmp_path / "2026-11-21" / f"{len(list(tmp_path.glob('*/*')))}-gelu"
        folder.mkdir(parents=True)
        with Journal(folder) as journal:
            journal.begin()
            for one, device, seconds in rows:
                journal.row(Row(case=one, status="ok", device=device, metrics={"wall_s": seconds}))
        return str(tmp_path)

    return write


def test_the_same_case_is_nearer_than_its_size_and_that_than_its_workload(took):
    folder = took(
        (case(cols=8), "H200", 2.0),
        (case(cols=8, samples=900), "H200", 40.0),
        (case(cols=4096), "H200", 9.0),
        (case(workload="mlp"), "H200", 500.0),
    )
    asked = [
        case(cols=8),
        case(cols=8, replica=1),
        case(cols=8, samples=7),
        case(cols=16),
        case(workload="add"),
        case("cuda"),
    ]
    guess = estimate(asked, folder, ["H200"])
    assert [guess.seconds[one.key] for one in asked] == [2.0, 2.0, 21.0, 9.0, 24.5, None]
    assert str(guess).partition("(")[2] == (
        "2 from the same case, 2 from the same workload and implementation, "
        "1 from other workloads with the same implementation; 4 rows of 1 earlier runs) and more, "
        "1 unknown: no earlier run"
    )
    assert str(estimate(asked[-1:], folder, ["H200"])) == "unknown: no earlier run"
    assert str(estimate(asked[:1], folder, ["H200"])) == "about 2 s (from the same case; 4 rows of 1 earlier runs)"


def test_this_device_is_nearer_than_the_same_case_on_another(took):
    folder = took((case(cols=8), "cpu", 100.0), (case(cols=4096), "H200", 7.0))
    assert estimate([case()], folder, ["H200"]).seconds[case().key] == 7.0
    assert estimate([case()], folder, ["H100"]).seconds[case().key] == 100.0
    assert estimate([case()], folder).seconds[case().key] == 100.0

"""The settings of a case: which identify a problem, what their record is, and that conf/ has their defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from runner.config.grid import Globals
from runner.findings.matching import reduced
from runner.records.options import CONF
from runner.records.schema import UNREADABLE
from runner.records.settings import EXACTNESS, NAMES, NEUTRAL, Settings

OTHERS = {
    "device": "cpu",
    "seed": 3,
    "debug": "anomaly",
    "time_wrong": True,
    "quick": True,
    "deterministic_algorithms": True,
}


def test_every_setting_is_a_field_of_the_config_and_neutral_by_default():
    given = yaml.safe_load((CONF / "config.yaml").read_text())
    assert Settings(**{name: given[name] for name in NAMES}) == NEUTRAL
    assert {*NAMES} == {*OTHERS} <= {*Globals.__dataclass_fields__}


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_says_whether_it_identifies_a_problem(case, name):
    plain = case().with_settings(**vars(NEUTRAL))
    other = plain.with_settings(**{name: OTHERS[name]})
    assert other.key != plain.key
    assert other.problem != plain.problem  # within a run they are other problems
    same = reduced(other, "cpu") == reduced(plain, "cpu")
    assert same == (name in EXACTNESS or name == "device")  # the device is the one that it ran on
    assert other.settings.without([name]) == NEUTRAL
    assert Settings.from_record(other.settings.to_record()) == other.settings


def test_a_record_that_is_malformed_is_refused():
    record = replace(NEUTRAL, quick=True).to_record()
    for odd in ({"seed": -1}, {"device": "tpu"}, {"quick": 1}, {"debug": "all"}, {"more": 1}):
        with pytest.raises(UNREADABLE):
            Settings.from_record({**record, **odd})
    with pytest.raises(UNREADABLE):
        Settings.from_record({"device": "cpu"})

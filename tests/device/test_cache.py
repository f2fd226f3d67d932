"""Records in the cache folder are found again under the same facts; a folder that cannot be written does no harm."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runner.device import cache

FACTS = {"uuid": "4f1c-aa", "gpu": "NVIDIA H200", "driver": "580.1", "torch": "2.13.0"}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_users_cache(home, monkeypatch):
    assert cache.cache_folder("measured_peak") == home / "kernel-runner" / "measured_peak"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.cache_folder("measured_peak") == Path("/home/someone/.cache/kernel-runner/measured_peak")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder("measured_peak") == Path("/home/someone/.cache/kernel-runner/measured_peak")


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    path = cache.cache_file("measured_peak", FACTS, 1)
    assert not cache.write_record(path, {})
    assert cache.read_record(path) is None


def test_a_file_stands_for_its_facts_and_format():
    place = cache.cache_file("measured_peak", FACTS, 1)
    assert place.name.startswith("4f1c-aa-")
    assert place.suffix == ".json"
    assert cache.cache_file("measured_peak", dict(reversed(FACTS.items())), 1) == place
    others = [cache.cache_file("measured_peak", FACTS | {name: "other"}, 1) for name in FACTS]
    others += [cache.cache_file("measured_peak", FACTS, 2), cache.cache_file("certificate", FACTS, 1)]
    assert len({place, *others}) == 1 + len(others)


def test_facts_without_an_identity_have_a_file_too():
    assert cache.cache_file("measured_peak", {"uuid": ""}, 1).name.startswith("unknown-")
    assert cache.cache_file("measured_peak", {}, 1).name.startswith("unknown-")


def test_a_record_comes_back():
    path, record = cache.cache_file("measured_peak", FACTS, 1), {"rate": 1.5, "names": ["a", "é"], "in": {"x": None}}
    assert cache.read_record(path) is None
    assert cache.write_record(path, {"old": True})
    assert cache.write_record(path, record)
    assert cache.read_record(path) == record
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b'{"torn": ', b"[1, 2]", b"7", b"\xff\xfe\x00"])
def test_what_is_no_record_is_none(content, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert cache.read_record(path) is None


def test_a_folder_that_cannot_be_made_does_no_harm(home):
    (home / "kernel-runner").write_text("a file where the folder should be")
    path = cache.cache_file("measured_peak", FACTS, 1)
    assert not cache.write_record(path, {})
    assert cache.read_record(path) is None


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(home, monkeypatch):
    path = cache.cache_file("measured_peak", FACTS, 1)
    cache.write_record(path, {"old": True})

    def full(*_: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(os, "replace", full)
    assert not cache.write_record(path, {"new": True})
    assert cache.read_record(path) == {"old": True}
    assert list(path.parent.iterdir()) == [path]


def test_what_is_not_json_is_a_mistake():
    with pytest.raises(TypeError):
        cache.write_record(cache.cache_file("measured_peak", FACTS, 1), {"x": object()})


def test_a_reader_never_sees_half_a_record():
    path = cache.cache_file("measured_peak", FACTS, 1)
    records = [{"values": [number] * 5000} for number in range(2)]
    cache.write_record(path, records[0])
    writers = [threading.Thread(target=lambda r=r: [cache.write_record(path, r) for _ in range(40)]) for r in records]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert cache.read_record(path) in records
    for writer in writers:
        writer.join()

"""Surroundings in which W&B knows nothing of whoever runs the tests."""

import importlib.util
import sys
from pathlib import Path

import made_runs
import pytest


def helper(name):
    """The module of that name beside this file: importlib mode puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location(f"tests_log_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def read_wandb():
    return helper("wandb_reader").read


@pytest.fixture(scope="session")
def records():
    return helper("wandb_reader").records


@pytest.fixture(scope="session")
def loopback():
    return helper("loopback").loopback


@pytest.fixture(scope="session")
def made_up():
    """Rows as a GPU would give them."""
    return helper("made_up")


@pytest.fixture
def home(monkeypatch, tmp_path):
    made_runs.isolate(monkeypatch, tmp_path / "home")
    return tmp_path / "home"

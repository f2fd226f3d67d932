"""Tests marked ``gpu`` run where torch sees a GPU, and are skipped elsewhere."""

import pytest


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="torch sees no NVIDIA GPU here"))

"""Cases and rows without a worker."""

from __future__ import annotations

import pytest

from runner.experiment.case import CaseRecord, Choice


def make_case(impl: str = "torch", workload: str = "gelu", impl_fields: dict | None = None, **fields) -> CaseRecord:
    measure = Choice("benchmark", {"samples": 20})
    return CaseRecord(Choice(workload, fields or {"cols": 8}), Choice(impl, impl_fields or {}), (measure,), "cpu", 0)


@pytest.fixture
def case():
    return make_case

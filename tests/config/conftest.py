"""Load Hydra's configs once for all tests."""

from __future__ import annotations

from functools import cache

from runner.config import compose

compose.Composer = cache(compose.Composer)  # type: ignore[misc, assignment]

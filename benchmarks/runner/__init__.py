"""Measure the cost of the runner, and what survives failures."""

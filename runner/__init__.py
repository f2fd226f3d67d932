"""A declarative experiment runner for GPU operations."""

__version__ = "0.1.0"

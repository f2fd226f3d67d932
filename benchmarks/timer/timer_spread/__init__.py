"""Measure the spread of times between processes: see ``__main__``."""

"""Faults in cases, the runner and the disk, and what a grid loses by them: see ``__main__``."""

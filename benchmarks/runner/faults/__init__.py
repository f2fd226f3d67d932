"""What a grid loses when its cases, the runner itself, or the disk fail: see ``__main__``."""

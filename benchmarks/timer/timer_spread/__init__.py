"""How far apart fresh processes time the same call: see ``__main__``."""

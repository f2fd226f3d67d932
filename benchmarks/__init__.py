"""The project beside its peers, in one run each; recorded tables are in ``results/``."""

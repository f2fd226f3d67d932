"""Test whether times are correct, and whether they agree with each other."""

"""Whether a time is right, and whether two agree."""

"""Studies of how any operation is measured and judged."""

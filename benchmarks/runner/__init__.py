"""What the runner costs, and what survives."""

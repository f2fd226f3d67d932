"""Compare our kernels with torch and torch.compile over seeded random shapes."""

"""Compare our kernels with torch, torch.compile, the vendor's libraries and a copy, on the same data."""

"""Our kernels beside torch, torch.compile, the vendor's libraries and a copy, on the same data in the same rounds."""

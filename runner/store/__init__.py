"""A run on disk: its folder, its journal, and what resuming keeps."""

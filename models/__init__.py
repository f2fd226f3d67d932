"""Workloads: one class per file, called as the file is. Importing one loads no torch."""

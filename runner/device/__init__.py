"""The machine: its GPUs and CPU, their locks, its processes, tools and caches."""

"""Time of a call on a CPU or a GPU. Of all libraries it uses torch alone, which this file does not import."""

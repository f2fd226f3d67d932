"""Readers of rows. Nothing here measures, and nothing here writes a result that the journal does not hold."""

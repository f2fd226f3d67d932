"""What goes in and what comes out: cases, their schema, rows and columns. Imports nothing heavy."""

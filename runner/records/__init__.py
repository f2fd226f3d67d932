"""What goes in and what comes out: cases, plans, rows and columns, as plain names and values. Imports nothing heavy."""

"""The measuring path of any operation: its inputs, first calls, check, kept-result test, time and verdict."""

"""One style for output: tables, charts, verdicts, traces, and words for phases and categories.

The report of a room stays in that room, which gives its numbers to these functions.
"""

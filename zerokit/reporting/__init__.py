"""What people see, in one style: tables, plots, verdicts, traces, and the words for phases and categories.

A room's report stays in that room, which puts the figures together and hands them over to here.
"""

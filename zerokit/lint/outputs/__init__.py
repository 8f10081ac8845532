"""Reports for people and for machines: text, JSON, GitHub annotations and SARIF.

A form is a function of the checked files alone; what it returns is printed as it is.
"""

from zerokit.lint.outputs.checked import CheckedFile, counted
from zerokit.lint.outputs.github import to_github
from zerokit.lint.outputs.machine import to_data
from zerokit.lint.outputs.sarif import to_sarif
from zerokit.lint.outputs.text import line_of, text_lines

"""Rules over a ds_config and the run it is meant for.

Importing this package is light: neither torch nor transformers nor deepspeed.
"""

from zerokit.findings import Finding, Severity
from zerokit.lint.rule import RULES, Rule
from zerokit.lint.run import Report, check_config, check_document
from zerokit.lint.subject import Subject

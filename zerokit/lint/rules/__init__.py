"""All rules: those of the table, and files by topic for the others. Importing this package registers them."""

from importlib import import_module
from typing import get_args

from zerokit.lint.rule import RULES, Topic
from zerokit.lint.table import register_table

FILES = (
    "structure",
    "auto",
    "batch",
    "precision",
    "gradient_formats",
    "loss_scaling",
    "optimizer",
    "optimizer_on_host",
    "scheduler",
    "zero",
    "offload",
    "nvme",
    "host_memory",
    "zenflow",
    "buckets",
    "saving",
    "parallelism",
    "compiling",
    "activations_and_data",
    "versions",
    "trainer",
    "recipes",
    "accelerate",
    "accelerate_launch",
    "accelerate_processes",
)
"""In the order in which rules of one topic are documented and findings of one line are printed. Rules of the
table come first."""

register_table()
for _file in FILES:
    import_module(f"zerokit.lint.rules.{_file}")

_ORDER = get_args(Topic)
_sorted = sorted(RULES.values(), key=lambda rule: _ORDER.index(rule.topic))
RULES.clear()
RULES.update({rule.id: rule for rule in _sorted})

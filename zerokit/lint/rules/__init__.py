"""All rules, a file per topic. Importing this package registers them."""

from importlib import import_module

TOPICS = (
    "structure",
    "deprecated",
    "auto",
    "batch",
    "precision",
    "gradient_formats",
    "loss_scaling",
    "autocast",
    "optimizer",
    "optimizer_numbers",
    "optimizer_on_host",
    "muon",
    "scheduler",
    "one_cycle",
    "zero",
    "refusals",
    "zero_models",
    "offload",
    "nvme",
    "host_memory",
    "zenflow",
    "buckets",
    "saving",
    "parallelism",
    "zeropp",
    "expert_parallel",
    "compiling",
    "activations_and_data",
    "versions",
    "defects",
    "performance",
    "diagnostics",
    "trainer",
    "recipes",
    "accelerate",
    "accelerate_launch",
    "accelerate_script",
    "accelerate_processes",
)
"""The files, in the order in which rules are documented and findings of one line are printed."""

for _topic in TOPICS:
    import_module(f"zerokit.lint.rules.{_topic}")

"""The CPU time of the Python functions of DeepSpeed, torch, accelerate and transformers, measured.

``python -m tools.host_costs`` trains tiny modules with the real engine on one CPU rank, profiles its functions,
and writes ``zerokit/hardware/costs/python_calls.json``.
"""

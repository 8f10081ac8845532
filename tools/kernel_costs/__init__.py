"""CardCosts of matrix products and attention, fitted to published measurements of kernels.

``python -m tools.kernel_costs.fit`` reads ``tables.json`` and writes
``zerokit/hardware/costs/kernels.json``.
"""

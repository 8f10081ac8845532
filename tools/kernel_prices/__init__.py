"""Prices of matrix products and attention, fitted to published measurements of kernels.

``python -m tools.kernel_prices.fit`` reads ``tables.json`` and writes
``zerokit/hardware/prices/kernels.json``.
"""

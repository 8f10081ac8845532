"""Prints what torch.cuda says of the GPU."""

from __future__ import annotations

import json

import torch

properties = torch.cuda.get_device_properties(0)
print(
    json.dumps(
        {
            "name": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(),
            "total": properties.total_memory,
            "free": torch.cuda.mem_get_info()[0],
            "multiprocessors": properties.multi_processor_count,
            "l2": properties.L2_cache_size,
            "shared": properties.shared_memory_per_block_optin,
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        }
    )
)

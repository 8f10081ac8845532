"""Prints what torch.cuda, NVML and nvidia-smi say of the GPU."""

from __future__ import annotations

import json
import subprocess

import pynvml
import torch

properties = torch.cuda.get_device_properties(0)
kept = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
try:
    pynvml.nvmlDeviceGetFanSpeed(handle)
except pynvml.NVMLError as error:
    refusal = str(error)
query = ["nvidia-smi", "--query-gpu=index,name,memory.total,fan.speed", "--format=csv,noheader"]
print(
    json.dumps(
        {
            "name": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(),
            "total": properties.total_memory,
            "used": memory.used,
            "free": memory.free == torch.cuda.mem_get_info()[0],
            "by NVML": [pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetCount(), refusal],
            "by nvidia-smi": subprocess.check_output(query, text=True),
            "utilization": torch.cuda.utilization(),
            "multiprocessors": properties.multi_processor_count,
            "l2": properties.L2_cache_size,
            "shared": properties.shared_memory_per_block_optin,
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
            "used by torch": torch.cuda.device_memory_used(),
            "processes": torch.cuda.list_gpu_processes(),
        }
    )
)

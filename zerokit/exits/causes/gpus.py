"""Messages of CUDA, torch and the driver about a GPU."""

from __future__ import annotations

from zerokit.exits.causes.entry import GPU_TAKEN, OUT_OF_MEMORY, Cause, cause

GPUS: tuple[Cause, ...] = (
    cause(
        OUT_OF_MEMORY,
        "a GPU ran out of memory: {asked} more were requested",
        "",  # depends on the figures: see zerokit.exits.gpu_memory
        r" out of memory\. Tried to allocate (?P<asked>[\d.]+ ?[KMGT]i?B)",
    ),
    cause(
        GPU_TAKEN,
        "the device has no memory left; another process may hold it",  # or of the host: see gpu_memory
        "Find it with nvidia-smi, and end processes of an earlier run. With offload or in a data "
        "loader, host memory may be impossible to pin: set pin_memory: false, dataloader_pin_memory: "
        "false",
        r"CUDA error: out of memory",
        r"cudaErrorMemoryAllocation",
        r"driver error:out of memory",  # Ascend
    ),
    cause(
        "gpu-unavailable",
        "the GPU accepts no more processes: another one uses it exclusively, or its compute mode forbids it",
        "Find the process with nvidia-smi, and the mode with 'nvidia-smi -q -d COMPUTE'. If there is "
        "none, exclude that machine",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
    ),
    cause(
        "gpu-broken",
        "the GPU or its link failed: {what}",
        "Exclude that machine ('dmesg | grep Xid' there names the GPU) and report it",
        r"uncorrectable ECC error",
        r"uncorrectable NVLink error",
        r"GPU is lost",
        r"Unable to determine the device handle",
        r"has fallen off the bus",
        # Others, such as 13, 31, 43 and 45, are mostly caused by programs: docs.nvidia.com/deploy/xid-errors.
        r"NVRM: Xid \([^)]{1,40}\): (?:48|6[124]|74|79|9[245]|1[124]\d)\b",
    ),
    cause(
        "no-kernel-image",
        "this build of torch, or of an extension, has no code for this GPU",
        "Install a torch (and its triton) whose torch.cuda.get_arch_list() has the GPU's capability, "
        "and recompile extensions with TORCH_CUDA_ARCH_LIST",
        r"no kernel image is available for execution",
        r"device kernel image is invalid",
        r"ptxas fatal {1,4}: Value 'sm_\w{1,8}' is not defined for option 'gpu-name'",
        r"is not compatible with the current PyTorch installation",
    ),
    cause(
        "driver-too-old",
        "the NVIDIA driver is older than this build of torch needs",
        "Update the driver, or install a torch for an older CUDA",
        r"NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient",
    ),
    cause(
        "no-such-gpu",
        "a rank has no GPU of its own: there are more ranks than GPUs on its machine",
        "Start as many ranks per node as GPUs: --num_gpus, --nproc-per-node, slots in the hostfile; see "
        "CUDA_VISIBLE_DEVICES",
        r"CUDA error: invalid device ordinal",
        r"Duplicate GPU detected",
    ),
    cause(
        "index-out-of-range",
        "an index was out of range in a kernel: usually a token id beyond the embedding, or a label",
        "Compare len(tokenizer) with the model's vocab_size, and labels with num_labels; "
        "CUDA_LAUNCH_BLOCKING=1 shows the line",
        r"device-side assert triggered",  # of which no line says more
        r"Assertion `[^`'\n]{0,160}(?:srcIndex < srcSelectDimSize|n_classes|index out of bounds|-sizes\[i\])",
    ),
    cause(
        "kernel-assertion",
        "an assertion failed in a kernel: {what}",
        "CUDA_LAUNCH_BLOCKING=1 shows the line. If it is about input_val from zero to one: a binary "
        "cross-entropy got values that are no probabilities, such as NaN or logits",
        r"\.cuh?:\d{1,6}: [^\n]{0,200}Assertion `(?P<what>[^`'\n]{1,160})[`'] failed",
    ),
    cause(
        "illegal-memory-access",
        "a kernel accessed invalid memory or crashed: {what}",
        "Run with CUDA_LAUNCH_BLOCKING=1 to see which, and update its package (flash-attn, bitsandbytes)",
        r"an illegal memory access was encountered",
        r"CUDA error: misaligned address",
        r"CUDA error: unspecified launch failure",
        r"CUDA error: an illegal instruction was encountered",
        r"NVRM: Xid \([^)]{1,40}\): (?:13|31)\b",
    ),
    cause(
        "nccl-memory",
        "a GPU had no memory left for NCCL's buffers",
        "Use a smaller micro-batch, gradient_checkpointing or more offload; check with nvidia-smi "
        "that each rank has its own GPU",
        r"Cuda failure (?:2 )?'out of memory'",
        r"Failed to (?:CUDA|Cuda) (?:host )?[cm]alloc",
    ),
    cause(
        "vllm-memory",
        "vLLM found too little GPU memory: {what}",
        "The trained model may hold it: set vllm_gpu_memory_utilization (TRL) or "
        "gpu_memory_utilization to the free share, lower vllm_max_model_len, or give vLLM its own "
        "GPUs",
        r"No available memory for the cache blocks",
        r"Free memory on device [^\n]{0,80}on startup is less than desired GPU memory utilization",
        r"is larger than the maximum number of tokens that can be stored in KV cache",
    ),
    cause(
        "cuda-library",
        "a matmul or convolution failed on the GPU: {what}",
        "CUDA reports errors late: CUDA_LAUNCH_BLOCKING=1 shows the line. Usually an index was out "
        "of range before (token ids, labels), or GPU memory was full",
        r"CUBLAS_STATUS_(?:ALLOC_FAILED|EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED|INVALID_VALUE|NOT_SUPPORTED)",
        r"CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)",
    ),
    cause(
        "no-bf16",
        "bf16 was requested, but the GPU does not support it, or torch sees no GPU",
        "Check torch.cuda.is_available(); GPUs support it from Ampere (A100, RTX 30) on; train in "
        "fp16 on others",
        r"Your setup doesn't support bf16",
        r"bf16 mixed precision requires",
    ),
    cause(
        "no-gpu",
        "torch sees no GPU: {what}",
        "Check nvidia-smi, CUDA_VISIBLE_DEVICES, and that torch is a CUDA build "
        "(torch.version.cuda); a container needs --gpus all",
        r"No CUDA GPUs are available",
        r"Found no NVIDIA driver on your system",
        r"Torch not compiled with CUDA enabled",
        r"CUDA driver initialization failed",
        r"CUDA unknown error - this may be due to an incorrectly set up environment",
    ),
    cause(
        "fabric-manager",
        "the GPUs' NVSwitch is not ready: NVIDIA's Fabric Manager does not run, or has another version",
        "On that machine: systemctl status nvidia-fabricmanager; its version must be the driver's",
        r"Error 802: system not yet initialized",
        r"CUDA error: system not yet initialized",
    ),
    cause(
        "kernel-too-large",
        "a Triton kernel needs more of the GPU's shared memory than it has: {what}",
        "Update triton and the kernel's package, or do not use that kernel (liger, fused losses): it "
        "was tuned for a larger GPU",
        r"out of resource: shared memory[^\n]{0,80}",
    ),
    cause(
        "forked-cuda",
        "a process used CUDA after it was forked from one that had used it",
        "Use no GPU before workers start, or set the start method to spawn (multiprocessing_context)",
        r"Cannot re-initialize CUDA in forked subprocess",
    ),
)

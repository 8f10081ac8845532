"""Errors of DeepSpeed, transformers, accelerate and autograd."""

from __future__ import annotations

from zerokit.exits.causes.entry import Cause, cause

TRAINING: tuple[Cause, ...] = (
    cause(
        "partitioned-parameter",
        "a parameter was used while ZeRO-3 had partitioned it, so that its shape is [0]",
        "Under ZeRO-3 use it inside the module's forward, or in deepspeed.zero.GatheredParameters; "
        "save with stage3_gather_16bit_weights_on_model_save. If it happens in forward: the model "
        "was made in deepspeed.zero.Init, but the ds_config has no stage 3",
        r"'weight' must be 2-D",
        r"mat2 must be a matrix, got 1-D tensor",
        r"The size of tensor a \(0\)",
        r"hape \[?0\]? is invalid",
        r"weight should have at least three dimensions",
        r"but got weight of (?:size|shape) \[0\]",
        r"shape in current model is torch\.Size\(\[0\]\)",
        r"got torch\.Size\(\[0\]\)",
        r"'status': 'NOT_AVAILABLE'",
        r"ZeroParamStatus\.NOT_AVAILABLE",
    ),
    cause(
        "empty-tensor",
        "an empty tensor was indexed: under ZeRO-3 a partitioned parameter, else an empty batch",
        "A parameter: use it in deepspeed.zero.GatheredParameters, and set its values before the "
        "engine is made; a batch: leave out examples that are empty after truncation",
        r"is out of bounds for dimension 0 with size 0",
    ),
    cause(
        "trace-changed",
        "ZeRO-3 saw modules in another order than in the step before, not on all ranks, or not finished",
        "Declare modules that skip others (mixture of experts) as leaf modules: "
        "deepspeed.utils.set_z3_leaf_modules, or zero_optimization.leaf_module",
        r"tracing error at step",
        r"still have inflight params",
        r"not all parameters were reset",
        r"AssertionError: \{'id': \d{1,9}, 'status': '(?:INFLIGHT|AVAILABLE)'",
        r"Cannot partition a param in flight",
        r"disagreement between rank0 and rank",
        r"__step_id_module_fetched_for\[[^\n]{0,60}popleft\(\)\s{0,4}\n(?:[^\n]{0,160}\n)??[^\n]{0,100}"
        r"IndexError: pop from an empty deque",
    ),
    cause(
        "gradient-twice",
        "a parameter's gradient came twice in one backward pass",
        "Checkpoint activations with use_reentrant=False (gradient_checkpointing_kwargs), and call a shared "
        "module once per backward",
        r"has already been reduced",
        r"Expected to mark a variable ready only once",  # DDP
        # ZeRO-3 raises an assertion without a message.
        r"assert len\(set\(p\.ds_id for p in [^\n]{0,160}\n(?:[^\n]{0,160}\n)??[^\n]{0,100}AssertionError",
    ),
    cause(
        "backward-twice",
        "backward went through a part of the graph that an earlier backward had freed",
        "A tensor of an earlier step is used again: detach tensors that are kept between steps "
        "(losses, states, caches), and set use_cache=False; with activation checkpointing: "
        "use_reentrant=False",
        r"Trying to backward through the graph a second time",
    ),
    cause(
        "unused-parameters",
        "DDP waits for gradients of parameters that the loss does not depend on",
        "Set ddp_find_unused_parameters: true, or freeze or remove unused parameters; DeepSpeed's "
        "ZeRO-2 and 3 need no such option",
        r"Expected to have finished reduction in the prior iteration",
    ),
    cause(
        "loss-scale",
        "fp16 overflowed at the smallest loss scale: the gradients are not finite",
        "Train in bf16 (bf16.enabled), because models that were trained in bf16 overflow in fp16; or "
        "use a smaller learning rate",
        r"loss scale already at minimum",
        r"Minimum loss scale reached",  # fairseq
    ),
    cause(
        "not-finite",
        "the model computes NaN or infinite numbers: {what}",
        "Train and generate in bf16 if the model was trained in it; check the learning rate, batches "
        "whose labels are all ignored, and whether the weights were loaded ('zerokit checkpoint "
        "verify')",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        r"found NaN in local [^\n]{1,80}",  # Megatron
        r"oss is (?:nan|NaN|inf), stopping",
    ),
    cause(
        "no-gradient",
        "the loss depends on no parameter that is trained",
        "With PEFT and gradient checkpointing call model.enable_input_require_grads(), or set "
        "use_reentrant=False",
        r"does not require grad and does not have a grad_fn",
    ),
    cause(
        "batch-sizes",
        "train_batch_size is not micro batch x accumulation steps x ranks",
        'Leave train_batch_size out, or set "auto" with transformers; zerokit check --num-gpus N names them',
        r"Check batch related parameters",
        r"Train batch size: \S{1,20} has to be greater than 0",
        r"Micro batch size per gpu: \S{1,20} has to be greater than 0",
    ),
    cause(
        "nvme-buffer",
        "offload_param.buffer_size holds {buffer} elements, and the largest parameter has {elements}",
        "Set zero_optimization.offload_param.buffer_size to more than that",
        r"More elements (?P<elements>[\d,]+) than buffer size (?P<buffer>[\d,]+)",
    ),
    cause(
        "nvme-buffer",
        "there is no free buffer for parameters on NVMe: each one in use or prefetched takes one of "
        "offload_param.buffer_count",
        "Set zero_optimization.offload_param.buffer_count to 12, or to what 'zerokit check --model' "
        "reports. If that is not enough: evaluate only after training, because DeepSpeed goes on "
        "releasing parameters as in evaluation ('zerokit train' avoids that)",
        r"Not enough buffers \d{1,6} for swapping \d{1,6}",
    ),
    cause(
        "no-sync",
        "no_sync() was entered with ZeRO-2 or ZeRO-3, which reduce gradients in every backward pass",
        "Let the engine accumulate: gradient_accumulation_steps in the ds_config",
        r"no_?sync context manager is incompatible",
    ),
    cause(
        "no-optimizer",
        "the engine was made without an optimizer, which ZeRO-1 and ZeRO-2 need",
        'Give the ds_config an "optimizer" section, or pass one to deepspeed.initialize; to evaluate only: '
        "stage 3",
        r"zero stage \d requires an optimizer",
    ),
    cause(
        "evaluate-only",
        "the engine was made without an optimizer, which ZeRO-1 and ZeRO-2 need",
        "Evaluate after training, at stage 3, or without DeepSpeed",
        r"only makes sense with ZeRO Stage 3",
    ),
    cause(
        "device-map",
        "device_map and low_cpu_mem_usage do not work with ZeRO-3",
        "Leave both out of from_pretrained",
        r"Zero-3 is not compatible with [^\n]{0,40}low_cpu_mem_usage",
    ),
    cause(
        "config-differs",
        "the ds_config and the training arguments differ: {what}",
        'Set those keys of the ds_config to "auto", or both to the same value',
        r"Please correct the following DeepSpeed config values that mismatch TrainingArguments values:"
        r"\s{0,4}\n[^\n]{0,60}?- (?P<what>ds [^\n]{1,160})",
    ),
    cause(
        "config-key",
        "DeepSpeed refuses a key of its config: {what}",
        "'zerokit check FILE' suggests the right key, and the DeepSpeed releases that read it",
        r"validation errors? for DeepSpeed\w{1,40}\s{0,4}\n(?P<what>[^\n]{1,120})",
        r"(?P<what>Please specify the ZeRO optimization config in the DeepSpeed config)",
    ),
    cause(
        "device-map",
        "the model was distributed by device_map, or quantized on another device than that of its "
        "rank: {what}",
        "Leave device_map out; for a quantized model set device_map={'': local_rank}, and use no "
        "ZeRO-3 unless its storage type is a floating-point type",
        r"You can't train a model that has been loaded (?P<what>[^\n]{1,120})",
    ),
    cause(
        "two-models",
        "one Accelerator prepared several models with DeepSpeed",
        "Use one Accelerator and one DeepSpeedPlugin per model, or leave the other models out of training",
        r"same `Accelerator\(\)` instance with multiple models",
    ),
    cause(
        "devices-differ",
        "tensors of one operation are on different devices",
        "Leave out device_map, which distributes the model; move the batch to engine.device or "
        "accelerator.device",
        r"Expected all tensors to be on the same device",
    ),
    cause(
        "dtypes-differ",
        "tensors of one operation have different dtypes: {what}",
        "Load the model in its training dtype, and cast adapters, heads and inputs, or run under autocast",
        r"mat1 and mat2 (?:to have|must have) the same dtype, but got[^\n]{0,60}",
        r"expected scalar type \w{1,20} but found \w{1,20}",
        r"expected m1 and m2 to have the same dtype, but got[^\n]{0,60}",
    ),
    cause(
        "meta-tensor",
        "a parameter has no data: it is on the meta device",
        "Its weights were not in the checkpoint, or low_cpu_mem_usage was used with zero.Init: load "
        "with from_pretrained under transformers' ZeRO-3 (make an HfDeepSpeedConfig first)",
        r"Cannot copy out of meta tensor",
    ),
    cause(
        "padding",
        "examples of different lengths were not padded: {what}",
        "Give the tokenizer a pad_token, and the Trainer a collator that also pads labels",
        r"Asking to pad but the tokenizer does not have a padding token",
        r"Unable to create tensor, you should probably activate truncation and/or padding",
    ),
    cause(
        "checkpoint-tag",
        "ranks saved under different names",
        "Make the tag of save_checkpoint on rank 0 and broadcast it; use no time or rank in it",
        r"The checkpoint tag name '[^'\n]{0,100}' is not consistent across",
    ),
)

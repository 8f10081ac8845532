"""Errors of DeepSpeed, transformers, accelerate and autograd."""

from __future__ import annotations

from zerokit.exits.causes.entry import Cause, cause

TRAINING: tuple[Cause, ...] = (
    cause(
        "partitioned-parameter",
        "a parameter was used while ZeRO-3 had it in parts on all ranks, where its shape is [0]",
        "Under ZeRO-3 read it inside the module's forward, or in deepspeed.zero.GatheredParameters; save by "
        "stage3_gather_16bit_weights_on_model_save. In forward itself: the model was made in "
        "deepspeed.zero.Init, and the ds_config has no stage 3",
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
        "a tensor with nothing in it was indexed: under ZeRO-3 a parameter that is in parts, else an empty "
        "batch",
        "A parameter: read it in deepspeed.zero.GatheredParameters, and give it its values before the "
        "engine is made; a batch: leave out examples that have nothing left after truncation",
        r"is out of bounds for dimension 0 with size 0",
    ),
    cause(
        "trace-changed",
        "ZeRO-3 saw the modules in another order than in the step before, not on all ranks, or left before "
        "their end",
        "Declare modules that choose (mixture of experts) as leaves: deepspeed.utils.set_z3_leaf_modules, "
        "or zero_optimization.leaf_module",
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
        "Something of an earlier step is used again: detach what is kept between steps (losses, states, "
        "caches), and use_cache=False; with activation checkpointing: use_reentrant=False",
        r"Trying to backward through the graph a second time",
    ),
    cause(
        "unused-parameters",
        "DDP waits for gradients of parameters that the loss does not depend on",
        "ddp_find_unused_parameters: true, or freeze or leave out what is unused; DeepSpeed's ZeRO-2 and 3 "
        "need no such option",
        r"Expected to have finished reduction in the prior iteration",
    ),
    cause(
        "loss-scale",
        "fp16 overflowed at the smallest loss scale: the gradients are not finite",
        "Train in bf16 (bf16.enabled): models that were trained in it do not fit fp16; or a smaller "
        "learning rate",
        r"loss scale already at minimum",
        r"Minimum loss scale reached",  # fairseq
    ),
    cause(
        "not-finite",
        "the model gives NaN or infinite numbers: {what}",
        "Train and generate in bf16 where the model was made in it; look at the learning rate, at labels "
        "that are all ignored, and whether the weights were loaded ('zerokit checkpoint verify')",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        r"found NaN in local [^\n]{1,80}",  # Megatron
        r"oss is (?:nan|NaN|inf), stopping",
    ),
    cause(
        "no-gradient",
        "the loss depends on no parameter that is trained",
        "With PEFT and gradient checkpointing: model.enable_input_require_grads(), or use_reentrant=False",
        r"does not require grad and does not have a grad_fn",
    ),
    cause(
        "batch-sizes",
        "train_batch_size is not micro batch x accumulation steps x ranks",
        'Leave train_batch_size out, or "auto" with transformers; zerokit check --num-gpus N names them',
        r"Check batch related parameters",
        r"Train batch size: \S{1,20} has to be greater than 0",
        r"Micro batch size per gpu: \S{1,20} has to be greater than 0",
    ),
    cause(
        "nvme-buffer",
        "offload_param.buffer_size holds {buffer} elements, and the largest parameter has {elements}",
        "Set zero_optimization.offload_param.buffer_size above it",
        r"More elements (?P<elements>[\d,]+) than buffer size (?P<buffer>[\d,]+)",
    ),
    cause(
        "nvme-buffer",
        "parameters on NVMe found no free buffer: each in use or read ahead holds one of "
        "offload_param.buffer_count",
        "Set zero_optimization.offload_param.buffer_count to 12, or as 'zerokit check --model' says. If that "
        "is not enough: evaluate only after training, since DeepSpeed goes on releasing parameters as in "
        "evaluation ('zerokit train' has it decide anew)",
        r"Not enough buffers \d{1,6} for swapping \d{1,6}",
    ),
    cause(
        "no-sync",
        "no_sync() was entered with ZeRO-2 or ZeRO-3, which reduce gradients in every backward pass",
        "Have the engine accumulate: gradient_accumulation_steps in the ds_config",
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
        "device_map and low_cpu_mem_usage do not go with ZeRO-3",
        "Leave both out of from_pretrained",
        r"Zero-3 is not compatible with [^\n]{0,40}low_cpu_mem_usage",
    ),
    cause(
        "config-differs",
        "the ds_config and the training arguments say different things: {what}",
        'Set those keys of the ds_config to "auto", or both to the same',
        r"Please correct the following DeepSpeed config values that mismatch TrainingArguments values:"
        r"\s{0,4}\n[^\n]{0,60}?- (?P<what>ds [^\n]{1,160})",
    ),
    cause(
        "config-key",
        "DeepSpeed refuses a key of its config: {what}",
        "'zerokit check FILE' says what is meant, and which DeepSpeed reads it",
        r"validation errors? for DeepSpeed\w{1,40}\s{0,4}\n(?P<what>[^\n]{1,120})",
        r"(?P<what>Please specify the ZeRO optimization config in the DeepSpeed config)",
    ),
    cause(
        "device-map",
        "the model was spread by device_map, or quantized for another device than its rank trains on: {what}",
        "Leave device_map out; a quantized model: device_map={'': local_rank}, and no ZeRO-3 unless its "
        "storage type is a float's",
        r"You can't train a model that has been loaded (?P<what>[^\n]{1,120})",
    ),
    cause(
        "two-models",
        "one Accelerator was to prepare several models with DeepSpeed",
        "One Accelerator and one DeepSpeedPlugin for each, or make the other models no part of training",
        r"same `Accelerator\(\)` instance with multiple models",
    ),
    cause(
        "devices-differ",
        "tensors of one operation are on different devices",
        "Leave out device_map, which spreads the model; move the batch to engine.device or "
        "accelerator.device",
        r"Expected all tensors to be on the same device",
    ),
    cause(
        "dtypes-differ",
        "tensors of one operation have different dtypes: {what}",
        "Load the model in the dtype it trains in, and cast what is added to it (adapters, heads, inputs), "
        "or run under autocast",
        r"mat1 and mat2 (?:to have|must have) the same dtype, but got[^\n]{0,60}",
        r"expected scalar type \w{1,20} but found \w{1,20}",
        r"expected m1 and m2 to have the same dtype, but got[^\n]{0,60}",
    ),
    cause(
        "meta-tensor",
        "a parameter has no data: it is on the meta device",
        "Its weights were not in the checkpoint, or low_cpu_mem_usage and zero.Init were used at once: load "
        "by from_pretrained with transformers' own ZeRO-3 (HfDeepSpeedConfig made before)",
        r"Cannot copy out of meta tensor",
    ),
    cause(
        "padding",
        "examples of different lengths were not padded: {what}",
        "Give the tokenizer a pad_token, and the Trainer a collator that pads labels, too",
        r"Asking to pad but the tokenizer does not have a padding token",
        r"Unable to create tensor, you should probably activate truncation and/or padding",
    ),
    cause(
        "checkpoint-tag",
        "ranks were to save under different names",
        "Make the tag of save_checkpoint on rank 0 and broadcast it: no time or rank in it",
        r"The checkpoint tag name '[^'\n]{0,100}' is not consistent across",
    ),
)

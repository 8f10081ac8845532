"""Where DeepSpeed's sources show the rows of ``zerokit/lint/defects.json``.

``extract.py`` compares every line of it with the sources of all releases before it writes anything; a test
compares it with the installed release.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zerokit.releases.versions import Span, parse_span


class Evidence(NamedTuple):
    """A text that stands in a file in one run of releases, and in no other supported release."""

    file: str
    text: str
    span: Span

    def stands_in(self, root: Path) -> bool:
        """Whether the text stands in the release below `root`."""
        file = root / self.file
        return file.is_file() and self.text in file.read_text(encoding="utf-8")


def _seen(file: str, text: str, releases: str) -> Evidence:
    return Evidence(file, text, parse_span(releases))


_CONFIG = "deepspeed/runtime/config.py"
_ENGINE = "deepspeed/runtime/engine.py"
_PIPELINE = "deepspeed/runtime/pipe/engine.py"
_PRECISION = "deepspeed/runtime/precision_config.py"
_SCHEDULES = "deepspeed/runtime/lr_schedules.py"
_ZERO12 = "deepspeed/runtime/zero/stage_1_and_2.py"
_ZERO3 = "deepspeed/runtime/zero/stage3.py"
_PARAMETERS = "deepspeed/runtime/zero/partition_parameters.py"
_COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
_HOOKS = "deepspeed/runtime/zero/parameter_offload.py"
_UTILITIES = "deepspeed/runtime/zero/utils.py"

_WITHOUT_ZERO = _seen(_ENGINE, "DDP_BFLOAT16", "0.17.6 ..")
_TORCH_BACKWARD = _seen(_ENGINE, "loss = self.optimizer.scale_if_loss(loss)", "0.18.3 ..")
_MUON = _seen(_ENGINE, "elif self.optimizer_name() == MUON_OPTIMIZER:", "0.17.6 ..")
_SUPER_OFFLOAD = _seen(
    "deepspeed/runtime/superoffload/superoffload_stage3.py", "class SuperOffloadOptimizer_Stage3", "0.18.0 .."
)
_ORIGINAL_MUON = "deepspeed/runtime/zero/muon/original_muon.py"
_DECOUPLED = "deepspeed/runtime/checkpoint_engine/decoupled_checkpoint_engine.py"
_AUTOCAST = "deepspeed/runtime/torch_autocast.py"
_LEAF_MODULES = _seen("deepspeed/runtime/zero/leaf_module_config.py", "DEFAULT_LEAF_MODULE_CLASSES", "0.18.0 ..")
_ZENFLOW3 = _seen("deepspeed/ops/adam/zenflow_torch_adam.py", "class ZenFlowSelectiveAdamW_stage3", "0.18.1 ..")
_COSINE = _seen(_SCHEDULES, "cosine_progress", "0.19.3 ..")
_UNIVERSAL_ZERO3 = _seen(_ZERO3, "def _load_universal_checkpoint(", "0.14.5 ..")

EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    # Defects
    "overlap-wait": (_seen(_ZERO12, "get_accelerator().current_stream().wait_stream(stream)", "0.14.3 .."),),
    "overlap-buffer-index": (
        _seen(_ZERO12, "        self.index = 0\n        self.has_moe_params = False", "0.17.2 .. 0.18.5"),
        _seen(_ZERO12, "get_accelerator().current_stream().wait_stream(self.reduction_stream)", "0.17.5 .. 0.18.5"),
    ),
    "overlap-does-not-overlap": (
        _seen(_ZERO12, "get_accelerator().current_stream().wait_stream(self.reduction_stream)", "0.17.5 .. 0.18.5"),
    ),
    "overlap-buffer-lifetime": (_seen(_ZERO12, "buf.record_stream(", "0.19.0 .."),),
    "overlap-producer-streams": (_seen(_ZERO12, "copy_streams", "0.19.3 .."),),
    "deepcompile-not-compiled": (
        _seen(_ENGINE, "if self.is_deepcompile_enabled():\n            return", "0.17.6 .. 0.18.0"),
    ),
    "deepcompile-frozen": (
        _seen("deepspeed/compile/init_z3.py", "def init_z3(", "0.16.6 .."),
        _seen("deepspeed/compile/init_z3.py", "if use_opt and p.requires_grad:", "0.19.6 .."),
    ),
    "zero3-gradient-stream": (
        _seen(_ZERO3, "reduce_and_partition_stream.wait_stream(get_accelerator().default_stream())", ".. 0.18.8"),
    ),
    "gloo-stage12-step": (_seen(_ZERO12, "flatten_on_gpu", "0.18.7 .. 0.19.0"),),
    "gloo-gather": (_seen(_PARAMETERS, "launch_handles[-1].wait()", ".. 0.19.8"),),
    "zero2-accumulation": (
        _seen(
            _ZERO12,
            "if not i in self.averaged_gradients or self.averaged_gradients[i] is None:\n"
            "                    self.all_grad_tensors[i] =",
            "0.17.6 .. 0.18.3",
        ),
    ),
    "zero2-offload-accumulation": (
        _seen(
            _ZERO12,
            "            accumulate_gradients()\n        else:\n            copy_gradients_to_cpu()",
            "0.15.2 .. 0.19.0",
        ),
    ),
    "zero2-accumulation-format": (_seen(_ZERO12, "def _use_compact_grad_partition_buffer(", "0.19.8 .."),),
    "zero3-accumulation-format": (
        _seen(_ZERO3, "buffer_to_reduce.to(self.gradient_accumulation_dtype)", "0.19.2 .."),
    ),
    "zero1-not-divided": (
        _WITHOUT_ZERO,
        _seen("deepspeed/runtime/constants.py", 'DDP_BFLOAT16 = "bf16"', "0.17.6 .. 0.18.5"),
    ),
    "trainer-scales-twice": (_TORCH_BACKWARD, _seen(_ENGINE, "self._scale_wrt_gas", "0.18.4 .. 0.19.6")),
    "bf16-optimizer-accumulation": (
        _seen("deepspeed/runtime/constants.py", 'DDP_BFLOAT16 = "bf16"', "0.17.6 .. 0.18.5"),
        _seen(_ENGINE, "bf16_optimizer = isinstance(self.optimizer, BF16_Optimizer)", "0.19.0 .."),
    ),
    "stage0-fp16-no-step": (
        _seen(
            "deepspeed/runtime/fp16/fused_optimizer.py",
            "                        p.grad = None\n\n            if self.timers:\n"
            "                self.timers.log(OVERFLOW_TIMERS)\n            return self.overflow",
            "0.17.6 .. 0.18.2",
        ),
    ),
    "stage0-fp16-static-scale": (
        _seen(
            _ENGINE,
            "static loss scale: {self.loss_scale()}', ranks=[0])\n                optimizer = FP16_Optimizer",
            ".. 0.17.1",
        ),
    ),
    "stage0-fp16-unscaled": (_TORCH_BACKWARD,),
    "stage0-bf16-accumulates": (
        _WITHOUT_ZERO,
        _seen(_ENGINE, 'if self.zero_optimization() and hasattr(self.optimizer, "zero_grad"):', ".. 0.18.6"),
    ),
    "stage0-bf16-checkpoint": (
        _WITHOUT_ZERO,
        _seen(_ENGINE, "zero_optimizer_state = self.zero_optimization() or self.bfloat16_enabled()", ".. 0.18.5"),
    ),
    "stage0-bf16-load": (
        _WITHOUT_ZERO,
        _seen(_ENGINE, "load_path is not None and (self.zero_optimization() or self.bfloat16_enabled())", ".. 0.18.0"),
    ),
    "stage0-frozen-memory": (
        _WITHOUT_ZERO,
        _seen(
            "deepspeed/runtime/fp16/fused_optimizer.py",
            "trainable = [p for p in param_group['params'] if",
            "0.19.1 ..",
        ),
    ),
    "zero1-fp16-overflow": (
        _seen(
            _ZERO12, "        if partition_gradients:\n            '''This will capture overflow", "0.17.1 .. 0.18.0"
        ),
    ),
    "zero12-infinite-norm": (_seen(_ZERO12, "inf_or_nan.logical_not() * total_norm", ".. 0.16.6"),),
    "zero3-mixed-dtypes": (
        _seen(_ENGINE, "buffer_dtype", "0.19.2 .."),
        _seen(_PARAMETERS, "dtype=param_list[0].ds_tensor.dtype", ".. 0.19.3"),
    ),
    "zero3-quantized-bf16": (
        _seen(_PARAMETERS, "def dequantize(self, quantized_param, scale, dtype=None)", "0.19.6 .."),
    ),
    "hpz-stale-copy": (
        _seen(_PARAMETERS, "if param.ds_secondary_tensor is not None and not has_been_updated:", "0.14.3 .."),
        _seen(_PARAMETERS, "self._partition_param_sec(param)\n", ".. 0.18.3"),
    ),
    "hpz-small-parameters": (_seen(_PARAMETERS, "if sec_numel > 0:", "0.19.5 .."),),
    "all-reduce-fetch-call": (
        _seen(_COORDINATOR, "wait(handle_dependency=not fast_fetch)", "0.16.3 .."),
        _seen(
            _PARAMETERS,
            "    def wait(self, **kwargs) -> None:\n        if self.complete:\n            return\n\n"
            "        instrument_w_nvtx(self.handle.wait)()\n\n        for param in self.params:\n"
            "            assert param.ds_status == ZeroParamStatus.INFLIGHT, "
            'f"expected param {param.ds_summary()} to be inflight"\n            param.ds_status',
            "0.17.3 ..",
        ),
    ),
    "all-reduce-fetch-padding": (
        _seen(_PARAMETERS, "class AllReduceCoalescedHandle", "0.14.3 .."),
        _seen(_PARAMETERS, "start_param += param.ds_numel_aligned", "0.19.4 .."),
    ),
    "leaf-module-race": (_LEAF_MODULES, _seen(_COORDINATOR, "import threading", "0.18.6 ..")),
    "moe-no-leaf-modules": (_LEAF_MODULES,),
    "zero3-frozen-checkpointing": (_seen(_COORDINATOR, "in_checkpoint_recompute", "0.19.3 .."),),
    "reused-hooks": (_seen(_HOOKS, "coordinator._invalidate_trace()", "0.19.2 .."),),
    "modules-added-later": (_seen(_HOOKS, "def ensure_zero_ordered_dict(", "0.19.1 .."),),
    "zero3-wrapper-hooks": (_seen(_HOOKS, "not in module.__dict__", "0.19.3 .."),),
    "autotp-zero3": (_seen(_ENGINE, "and 'zero_stage = 3' has not been validated", "0.16.4 .. 0.19.4"),),
    "autotp-biases": (
        _seen("deepspeed/module_inject/layers.py", "class GatherReplacedLayerParams", "0.16.4 .."),
        _seen("deepspeed/module_inject/layers.py", "def add_bias(", "0.17.0 .."),
    ),
    "autoep-large-experts": (
        _seen("deepspeed/moe/group_gemm_triton.py", "b_base = b_ptr + selected * stride_be", "0.19.4 .. 0.19.6"),
    ),
    "autoep-universal": (
        _seen("deepspeed/module_inject/auto_ep.py", "class AutoEP", "0.19.2 .."),
        _seen("deepspeed/checkpoint/ds_to_universal.py", "def _aggregate_autoep_zero12_metadata(", "0.19.5 .."),
    ),
    "autotp-patterns": (
        _seen("deepspeed/module_inject/autotp_config.py", "class AutoTPConfig", "0.18.6 .."),
        _seen(
            "deepspeed/module_inject/auto_tp.py",
            "full_name = class_name + '.' + name if class_name else name",
            "0.19.3 ..",
        ),
    ),
    "autocast-zero3-gather": (_seen(_PARAMETERS, "allgather_dtype))", "0.17.2 .. 0.17.5"),),
    "autocast-nested": (_seen(_AUTOCAST, "def validate_nested_autocast(engine):", "0.17.2 .. 0.17.6"),),
    "autocast-mixed-formats": (
        _seen(_AUTOCAST, "TORCH_AUTOCAST_INITIALIZED", "0.17.2 .."),
        _seen(_PARAMETERS, '"all params must have the same dtype"', "0.17.2 .. 0.19.3"),
    ),
    "zero3-autocast-copies": (
        _seen(_AUTOCAST, "TORCH_AUTOCAST_INITIALIZED", "0.17.2 .."),
        _seen(_ZERO3, "fp32_partitioned_groups_flat.append(self.fp16_partitioned_groups_flat[i])", "0.18.2 .."),
    ),
    "hybrid-engine-zero3": (
        _seen("deepspeed/module_inject/layers.py", "def _mark_uc_metadata(", "0.18.9 .."),
        _seen("deepspeed/module_inject/layers.py", "_shape_before_zero3_partition", "0.19.6 .."),
    ),
    "zero3-reduce-one-by-one": (
        _seen(_ZERO3, "class IPGBucketZ3", "0.17.2 .."),
        _seen(_ZERO3, "bucket.elements = 0", "0.17.3 .."),
    ),
    "slow-backward-hooks": (
        _seen("deepspeed/runtime/base_optimizer.py", "class BackwardHookStateManager", "0.18.5 .."),
        _seen("deepspeed/runtime/base_optimizer.py", "def should_refresh_expected_hook_count(", "0.18.7 .."),
    ),
    "pin-memory-ignored": (
        _seen(
            _ZERO12,
            "            if self.cpu_offload:\n"
            "                weights_partition = get_accelerator().pin_memory(weights_partition)",
            "0.14.1 .. 0.18.3",
        ),
    ),
    "communication-type-bucket": (
        _seen(_ZERO12, "self.extra_large_param_to_reduce[param.dtype]", "0.17.2 .. 0.18.2"),
    ),
    "zero12-offload-gpu-memory": (_seen(_ZERO12, "param_buffer_of_bit16_for_cpu_offload_groups", "0.17.0 .."),),
    "cpu-lion-refused": (_seen(_ENGINE, "deepspeed.ops.lion.DeepSpeedCPULion", "0.17.6 .."),),
    "cpu-lion-values": (_seen("csrc/includes/cpu_lion.h", "constexpr float neg1 = -1.0f;", ".. 0.19.8"),),
    "cpu-adagrad-weight-decay": (
        _seen("csrc/includes/cpu_adagrad.h", "simd_load<span>(momentum_4, grads + i);", "0.14.3 .. 0.19.8"),
    ),
    "super-offload-start": (
        _SUPER_OFFLOAD,
        _seen("deepspeed/runtime/superoffload/superoffload_stage3.py", "param_names", "0.18.4 .."),
    ),
    "super-offload-groups": (
        _seen(
            "deepspeed/runtime/superoffload/superoffload_stage3.py",
            '"lr": self.optimizer.param_groups[0]["lr"]',
            "0.18.0 .. 0.18.9",
        ),
    ),
    "super-offload-small-group": (
        _SUPER_OFFLOAD,
        _seen(
            "deepspeed/runtime/superoffload/superoffload_stage3.py",
            "self.sub_group_to_param_num[len(sub_groups) - 1] = len(sub_group)",
            "0.18.0 .. 0.18.9",
        ),
    ),
    "nvme-open-files": (
        _seen("csrc/aio/py_lib/deepspeed_py_io_handle.cpp", "{ (completed_op->_fd); }", "0.17.1 .. 0.19.3"),
    ),
    "nvme-hang": (_seen("csrc/aio/py_lib/py_ds_aio.cpp", "py::gil_scoped_release", "0.18.4 .."),),
    "nvme-nothing-to-swap": (
        _seen("csrc/aio/py_lib/deepspeed_py_io_handle.cpp", "_num_pending_ops > 0", "0.15.0 .."),
        _seen("deepspeed/runtime/swap_tensor/optimizer_utils.py", "if len(swap_tensors) > 0:", "0.18.3 .."),
    ),
    "zenflow-backward": (
        _TORCH_BACKWARD,
        _seen("deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py", "def backward_prologue(", "0.19.2 .."),
    ),
    "zenflow-zero3-hang": (
        _ZENFLOW3,
        _seen("deepspeed/runtime/zenflow/engine_stage3.py", "selected_indices.long()", "0.19.1 .."),
    ),
    "zero3-kept-weights": (_seen(_HOOKS, 'if not hasattr(module, "ds_grads_remaining"):', "0.16.0 .. 0.16.8"),),
    "zenflow-zero3-offload": (
        _ZENFLOW3,
        _seen("deepspeed/ops/adam/zenflow_torch_adam.py", "def _is_partition_offloaded(", "0.19.2 .."),
    ),
    "zenflow-scrambled": (
        _seen(_ZERO12, "p.data = flat_group.narrow(0, offset, meta.numel()).view(meta.shape)", "0.19.7 .."),
    ),
    "fused-adam-large": (_seen("csrc/adam/multi_tensor_apply.cuh", "    int sizes[", ".. 0.18.1"),),
    "muon-untested": (
        _seen(_UTILITIES, "from deepspeed.runtime.muon_optimizer import MuonWithAuxAdam", "0.17.6 .. 0.18.5"),
    ),
    "zero12-muon-reduce-scatter": (_MUON, _seen(_ZERO12, "MuonWithAuxAdam", "0.19.3 ..")),
    "muon-offload": (_MUON, _seen(_ZERO12, "def _apply_muon_updates_cpu_offload(", "0.19.8 ..")),
    "muon-parameter-groups": (_MUON, _seen(_ENGINE, "def _muon_param_groups(", "0.19.7 ..")),
    "muon-without-zero": (
        _MUON,
        _seen("deepspeed/runtime/zero/muon/muon_optimizer.py", "muon_update(p.grad,", "0.19.7 .."),
    ),
    "muon-zero-init": (_MUON, _seen("deepspeed/__init__.py", "def _layer_shape(", "0.19.7 ..")),
    "muon-bf16-optimizer": (_MUON, _seen(_ENGINE, "Muon cannot be used with the BF16_Optimizer", "0.19.7 .. 0.19.8")),
    "muon-fp16-overflow": (_MUON, _seen(_ORIGINAL_MUON, "grad_is_finite", "0.19.7 ..")),
    "muon-fp16-unscaled": (_MUON, _seen(_ZERO12, "groups_lacking_loss_scale", "0.19.8 ..")),
    "muon-momentum-lost": (
        _seen(_ZERO12, "def _muon_staging_momentum(", "0.19.7 .."),
        _seen(_ZERO12, "staged_momentum = self._muon_staging_momentum(", "0.19.8 .."),
    ),
    "muon-zero3-accumulation": (
        _seen(
            _ZERO3,
            "self._apply_distributed_muon_update(communication_data_type, buffer_to_reduce)",
            "0.18.9 .. 0.19.8",
        ),
    ),
    "muon-matrix-scale": (
        _seen(_ORIGINAL_MUON, "@compiler.compile()\ndef muon_update", "0.18.3 .."),
        _seen(_ORIGINAL_MUON, "def _aspect_ratio_scale(", "0.19.8 .."),
    ),
    "muon-gram-range": (
        _seen(_ORIGINAL_MUON, "X = G.to(compute_dtype)\n    if", "0.19.0 .."),
        _seen(_ORIGINAL_MUON, "norm_dtype", "0.19.8 .."),
    ),
    "muon-frozen": (_MUON, _seen(_ENGINE, "p.use_muon and p.requires_grad", "0.18.7 .. 0.19.7")),
    "muon-momentum-on-host": (_MUON, _seen(_ZERO12, "# put on cpu to save space", "0.17.6 .. 0.18.3")),
    "warmup-first-step": (_seen(_SCHEDULES, "# Initialize lr in optimizer", "0.15.3 .."),),
    "warmup-groups": (
        _seen(_SCHEDULES, "[group['lr'] for group in self.optimizer.param_groups][0]", "0.17.2 .. 0.19.4"),
    ),
    "cosine-first-step-groups": (_seen(_SCHEDULES, "return [0.0 for _ in self.org_lrs]", "0.19.0 .."),),
    "cosine-rises-again": (_COSINE,),
    "cosine-no-decay": (_COSINE,),
    "one-cycle-stairs": (_seen(_SCHEDULES, "if stair_count > 0:", "0.19.4 .."),),
    "one-cycle-lists": (_seen(_SCHEDULES, "_format_param(optimizer, cycle_min_lr, 'cycle_min_lr')", "0.19.6 .."),),
    "dynamic-batch-sqrt": (
        _seen(
            "deepspeed/runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py",
            "torch.sqrt(",
            "0.16.5 .. 0.18.4",
        ),
    ),
    "wandb-sync": (_seen("deepspeed/monitor/wandb.py", "sync=", ".. 0.17.2"),),
    "universal-zero3-nodes": (
        _UNIVERSAL_ZERO3,
        _seen(_ENGINE, "from deepspeed.checkpoint.ds_to_universal import dp_index_to_str", "0.18.0 .."),
    ),
    "elastic-checkpoint-step": (_seen(_ZERO12, "if torch.is_tensor(value) and value.dim() > 0:", "0.18.2 .."),),
    "nvme-resume": (_seen(_ENGINE, "load_zero_checkpoint and not self.zero_nvme_offload_optimizer()", "0.18.0 .."),),
    "sequence-parallel-resume": (_seen(_ENGINE, "checkpoint_mp_rank", "0.19.6 .."),),
    "sequence-parallel-save": (
        _seen("deepspeed/runtime/sequence_parallel/parallel_state_sp.py", "def initialize_sequence", "0.17.0 .."),
        _seen("deepspeed/runtime/sequence_parallel/parallel_state_sp.py", "get_model_parallel_rank", "0.18.2 .."),
    ),
    "sequence-parallel-profile": (
        _seen(
            "deepspeed/profiling/flops_profiler/profiler.py",
            "dp_world_size = self.ds_engine.seq_dp_world_size",
            "0.19.3 ..",
        ),
    ),
    "decoupled-writer-hang": (
        _seen(_DECOUPLED, "class DecoupledCheckpointEngine", "0.17.1 .."),
        _seen(_DECOUPLED, "timeout", "0.18.4 .."),
    ),
    "writer-open-files": (
        _seen("deepspeed/io/fast_file_writer.py", "_aio_fd = INVALID_FD", "0.17.1 .."),
        _seen("deepspeed/io/fast_file_writer.py", "os.fsync(", "0.19.1 .."),
    ),
    "sequence-parallel-peft": (
        _seen(
            "deepspeed/runtime/sequence_parallel/ulysses_sp.py", 'hasattr(model_name_or_path, "config")', "0.18.4 .."
        ),
    ),
    "nvme-save-race": (_seen(_ENGINE, '"offloaded_tensors", rank_dir)', "0.18.0 .."),),
    "pipeline-backward": (_TORCH_BACKWARD, _seen(_PIPELINE, "_running_engine_backward", "0.18.5 ..")),
    "pipeline-repeated-scaling": (
        _TORCH_BACKWARD,
        _seen(_PIPELINE, "def _backward_prologue_per_tensor(", "0.19.3 .."),
    ),
    # Changes
    "communication-bf16": (_seen(_CONFIG, 'val == "bf16"', "0.14.1 .."),),
    "script-scheduler-first": (_seen(_ENGINE, "# First check for scheduler in json configuration", ".. 0.14.5"),),
    "universal-zero3": (_UNIVERSAL_ZERO3,),
    "warmup-maximum": (_seen(_SCHEDULES, "warmup_max_lr: float = None", "0.17.2 .."),),
    "bf16-without-zero": (
        _seen(_ENGINE, "if model_dtype == torch.bfloat16 and not self.zero_optimization():", ".. 0.17.6"),
    ),
    "master-weights-stages": (
        _seen(_CONFIG, "Fp16_master_weights_and_grads is only supported with ZeRO Stage 2", ".. 0.18.3"),
    ),
    "muon-zero3": (_seen(_ENGINE, "Muon optimizer is not yet compatible with ZeRO Stage 3", "0.17.6 .. 0.18.9"),),
    "muon-embeddings": (_MUON, _seen("deepspeed/__init__.py", "lm_head", "0.18.1 ..")),
    "muon-newton-schulz": (_seen(_ORIGINAL_MUON, "def zeropower_via_gram_newtonschulz(", "0.19.0 .."),),
    "buffers-keep-format": (_seen(_ENGINE, "self.module.bfloat16()", ".. 0.19.2"),),
}
"""By the id of a defect or change."""

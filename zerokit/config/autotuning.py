"""The section `autotuning`: the search that `deepspeed --autotuning` makes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from zerokit.config.base import NonNegative, Positive, Section, Sub

Folder = Annotated[str, Field(min_length=1)]


class ModelInfo(Section):
    """What the search would otherwise find out by a run of its own."""

    profile: bool = False
    """Find it out by a run. Default false."""

    num_params: Positive | None = None
    """Parameters of the model. Default none."""

    hidden_size: Positive | None = None
    """Hidden size of the model. Default none."""

    num_layers: Positive | None = None
    """Layers of the model. Default none."""


class Autotuning(Section):
    """The search of `deepspeed --autotuning` for a fast ZeRO stage and micro batch size.

    Under it, keys that are tuned may hold a list of values to try.
    """

    enabled: bool = False
    """Measure this run, as the search does with each of its experiments. Default false."""

    fast: bool = True
    """Try micro batch sizes and stages only. Default true."""

    metric: Literal["throughput", "latency", "flops"] = "throughput"
    """What is made best. Default throughput."""

    metric_path: str | None = None
    """File that a run writes its metric to. Default none."""

    results_dir: Folder = "autotuning_results"
    """Folder for the results. Default autotuning_results."""

    exps_dir: Folder = "autotuning_exps"
    """Folder for the experiments. Default autotuning_exps."""

    overwrite: bool = True
    """Delete earlier results. Default true (DeepSpeed's pages say false)."""

    start_profile_step: NonNegative = 3
    """First step that is measured. Default 3."""

    end_profile_step: Positive = 5
    """Step before which the measurement ends. Default 5."""

    tuner_type: Literal["gridsearch", "random", "model_based"] = "gridsearch"
    """Order of the experiments. Default gridsearch (DeepSpeed's pages say model_based)."""

    tuner_early_stopping: NonNegative = 5
    """Stop after this many experiments without a better one; 0 tries all. Default 5."""

    tuner_num_trials: Positive = 50
    """Most experiments per stage. Default 50."""

    arg_mappings: dict[str, Any] | None = None
    """Key of the ds_config -> the script's command-line option that must follow it. Default none."""

    model_info: Sub[ModelInfo] | None = None
    """What the search would otherwise find out by a run of its own. Default none."""

    model_info_path: str | None = None
    """File that holds it. Default none."""

    mp_size: Positive = 1
    """Ranks that share the model. Default 1."""

    max_train_batch_size: Positive | None = None
    """Largest `train_batch_size` to try. Default none: no bound."""

    min_train_batch_size: Positive = 1
    """Smallest `train_batch_size` to try. Default 1."""

    max_train_micro_batch_size_per_gpu: Positive = 1024
    """Largest `train_micro_batch_size_per_gpu` to try. Default 1024."""

    min_train_micro_batch_size_per_gpu: Positive = 1
    """Smallest `train_micro_batch_size_per_gpu` to try. Default 1."""

    num_tuning_micro_batch_sizes: Positive = 3
    """How many micro batch sizes to try in each stage. Default 3."""

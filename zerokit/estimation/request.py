"""Makes a `TrainingRun` from options or a ds_config, and fills "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from zerokit.choices import OffloadDevice, OptimizerKind, Precision, Target, ZeroStage
from zerokit.config import DeepSpeedConfig, load_ds_config, read_ds_config
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.descriptions import shown
from zerokit.config.dtypes import written_precision
from zerokit.config.key_index import canonical
from zerokit.config.load import as_error
from zerokit.documents import Document, KeyPath, dotted
from zerokit.errors import ConfigError
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Cluster
from zerokit.memory import TrainingRun
from zerokit.memory.optimizers import optimizer_made
from zerokit.memory.same_object import SameObject
from zerokit.memory.training_run import RunOptions
from zerokit.models.parallelism import parallelism_misfit
from zerokit.resolving.auto_word import autos, is_dropped
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Resolution, Value, resolve, resolve_settled
from zerokit.writing.build import build_ds_config

_NOT_FOR_MEMORY = ("scheduler", "steps_per_print")
"""Keys without influence on memory; `scheduler` needs numbers that only the data determine."""
_SAVING = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
_SECTION = "zero_optimization."
_SOME_FOLDER = "/local_nvme"
"""The path does not change how much is written."""


@dataclass(frozen=True, kw_only=True)
class Question(RunOptions):
    """One run as the command line describes it."""

    ds_config: str | Path | Mapping[str, Any] | DeepSpeedConfig | None = None
    """A file, a dict or a config. None: what `zerokit config` writes for the four settings that follow."""
    zero_stage: ZeroStage | None = None
    """0, 1, 2 or 3; none: without DeepSpeed."""
    offload_optimizer: OffloadDevice | None = None
    """Where optimizer states are kept instead of the GPU."""
    offload_param: OffloadDevice | None = None
    """Where parameters are kept instead of the GPU, in stage 3."""
    precision: Precision | None = None
    """None: the ds_config's; bf16 if it has none, or "auto"."""

    @property
    def without_deepspeed(self) -> bool:
        """Whether plain torch trains."""
        return self.zero_stage == "none"

    def with_sizes(self, **sizes: Any) -> Question:
        """The same question with other sizes, named as in :class:`zerokit.estimation.Axes`."""
        changed: dict[str, Any] = dict(sizes)
        of_cluster = {name: changed.pop(name) for name in ("num_gpus", "gpu") if name in changed}
        if of_cluster:
            changed["cluster"] = replace(self.cluster, **of_cluster)
        return replace(self, **changed)

    def run(self, given: Mapping[str, Any] | None = None) -> Run:
        """The run for `resolving`, with the arguments that the target gets."""
        shape = None if isinstance(self.model, int) else self.model
        return Run(
            target=self.target, cluster=self.cluster, parallelism=self.parallelism, model=shape, given=given or {}
        )


@dataclass
class Runs:
    """Makes the runs of a question and of its variants; reads its file once."""

    _documents: dict[int, Document] = field(default_factory=dict)
    _checked: set[tuple[object, ...]] = field(default_factory=set)
    _resolved: dict[tuple[object, ...], tuple[Document, Resolution, DeepSpeedConfig]] = field(default_factory=dict)

    def training_run(self, question: Question) -> TrainingRun:
        """Make the run of a question.

        Raises:
            ZerokitError: a size is invalid, settings exclude each other, the ds_config has errors, or ZeRO is
                described twice.
        """
        question.cluster.check_nodes()
        if (misfit := parallelism_misfit(question.parallelism, num_gpus=question.cluster.world_size)) is not None:
            raise misfit
        if question.without_deepspeed:
            question = _without_deepspeed(question)
        document, resolution, config = self._resolution(question)
        sizes = {str(value.path[0]): value for value in resolution.values if len(value.path) == 1}
        options = {one.name: getattr(question, one.name) for one in fields(RunOptions)}
        options |= {
            "micro_batch_size": _size(sizes, MICRO, "micro_batch_size"),
            "gradient_accumulation_steps": _size(sizes, STEPS, "gradient_accumulation_steps"),
            "optimizer": question.optimizer or _own_optimizer(question.target, config),
        }
        if isinstance(question.model, int):
            options["seq_len"] = None
        is_default = question.target == "trainer" and "the default of" in sizes[MICRO].detail
        written = self._documents.get(id(question.ds_config), document)
        notes = list(_notes(document, question, resolution, written))
        if is_default:
            size, argument = sizes[MICRO].value, "per_device_train_batch_size"
            note = f'micro batch {size} is the default of the Trainer\'s {argument}, which fills "auto"'
            notes.append(f"{note}; --micro-batch-size sets yours")
        return TrainingRun(
            **options,
            ds_config=config,
            micro_batch_is_default=is_default,
            notes=tuple(notes),
            without_deepspeed=question.without_deepspeed,
        )

    def _resolution(self, question: Question) -> tuple[Document, Resolution, DeepSpeedConfig]:
        """The ds_config of a question, as it is written, resolved, and read. Raises ConfigError."""
        key = (
            *(SameObject(question.ds_config), SameObject(question.model), question.cluster, question.target),
            *(question.zero_stage, question.offload_optimizer, question.offload_param, question.precision),
            *(question.micro_batch_size, question.gradient_accumulation_steps, question.parallelism),
        )
        if key not in self._resolved:
            document = self._document(question)
            resolution = _resolve(document, question)
            if resolution.refused:
                raise ConfigError(
                    resolution.refused[0].message,
                    where=document.name,
                    hint=resolution.refused[0].hint or "Fix the ds_config, or name another --target",
                )
            read = {k: v for k, v in resolution.config.items() if k not in _NOT_FOR_MEMORY}
            self._resolved[key] = document, resolution, load_ds_config(read)
        return self._resolved[key]

    def settings(self, question: Question) -> dict[str, Any]:
        """The ds_config of a question as it is written, with the sizes of the question."""
        return dict(self._document(question).data)

    def _document(self, question: Question) -> Document:
        source = question.ds_config
        if source is None:
            return _written(question)
        if any((question.zero_stage is not None, question.offload_optimizer, question.offload_param)):
            raise ConfigError(
                "the ds_config says how ZeRO works already",
                where="--ds-config",
                hint="Leave out --zero-stage and the options of offload, or the file",
            )
        if id(source) not in self._documents:
            self._documents[id(source)] = _read(source)
        written = self._documents[id(source)]
        document = _with_sizes(written, question)
        self._check(document, written, question)
        return document

    def _check(self, document: Document, written: Document, question: Question) -> None:
        """Raises ConfigError with the first error of the config, except "auto" that DeepSpeed drops.

        Args:
            document: with the sizes of the question.
            written: the file as it is.
            question: the question.
        """
        from zerokit.lint import check_document

        given = (question.cluster, question.micro_batch_size, question.gradient_accumulation_steps)
        if given in self._checked:
            return
        run = Run(target=question.target, cluster=question.cluster)
        errors = [
            finding
            for finding in check_document(document, run).findings
            if finding.severity == "error"
            and finding.rule != "not-plain-json"  # read all the same
            and not (finding.rule == "unfilled-auto" and _runs_with_auto(question.target, finding.path))
        ]
        if errors:
            cluster = Cluster(question.cluster.num_gpus, question.cluster.gpus_per_node)
            options = ["--target", question.target, "--num-gpus", str(cluster.num_gpus)]
            if cluster.gpus_per_node != GPUS_PER_NODE:
                options += ["--gpus-per-node", str(cluster.gpus_per_node)]
            named = check_document(written, Run(target=question.target, cluster=cluster)).findings
            raise as_error(errors, document, options=options, named=named)
        self._checked.add(given)


def _without_deepspeed(question: Question) -> Question:
    """The same with an optimizer of the script. Raises ConfigError for weights in fp16."""
    if question.autocast:
        question = replace(question, precision="fp32")  # of the weights
    if question.precision == "fp16":
        # torch/amp/grad_scaler.py: "Attempting to unscale FP16 gradients."
        raise ConfigError(
            "torch's GradScaler refuses weights in fp16",
            where="--precision",
            hint="Give bf16 or fp32, or --autocast for weights in fp32 that are computed in 16 bits",
        )
    return replace(question, target="accelerate") if question.target == "deepspeed" else question


def _runs_with_auto(target: Target, path: KeyPath) -> bool:
    return target == "deepspeed" and is_dropped(path)


def _notes(document: Document, question: Question, resolution: Resolution, written: Document) -> Iterator[str]:
    """What was assumed: DeepSpeed's defaults for "auto", and the precision; what options replace in the file."""
    card = question.cluster.gpu
    if card is not None and card.half_precision != "bf16" and written_precision(resolution.config) == "bf16":
        option = "--autocast" if question.ds_config is None and question.target == "accelerate" else "--precision"
        yield f"{card.name} has no bf16: torch emulates it there, without tensor cores. {option} fp16 is faster"
    in_file = [(key, written.data.get(key)) for key in (MICRO, STEPS, TRAIN)]
    replaced = [f"{key} {size}" for key, size in in_file if isinstance(size, int) and size != document.data.get(key)]
    if replaced:
        yield f"the batch sizes given replace {' and '.join(replaced)} of the ds_config"
    is_open = question.ds_config is not None and question.precision is None
    if is_open and question.target == "trainer" and written_precision(document.data) is None:
        yield (
            "bf16 is assumed, as zerokit train does where nothing names a precision. The Trainer without "
            "--bf16 or --fp16 trains in fp32; --precision sets yours"
        )
    values = {value.path: value.value for value in resolution.values}
    dropped = [path for path in autos(document.data) if _runs_with_auto(question.target, path)]
    defaults = [f"{dotted(path).removeprefix(_SECTION)} {shown(values.get(canonical(path)))}" for path in dropped]
    if defaults:
        yield f'DeepSpeed drops "auto" and uses its defaults: {", ".join(defaults)}'


def _read(source: str | Path | Mapping[str, Any] | DeepSpeedConfig) -> Document:
    if isinstance(source, DeepSpeedConfig):
        return Document(source.dump(), "ds_config")
    if isinstance(source, Mapping):
        return Document(dict(source), "ds_config")
    document = read_ds_config(source)
    if not isinstance(document.data, dict):
        raise ConfigError("is not a ds_config", where=document.name, hint="It holds no section {...}")
    return document


def _written(question: Question) -> Document:
    """The ds_config that `zerokit config` writes for the options, with DeepSpeed's default buckets."""
    if question.zero_stage is None:
        raise ConfigError(
            "nothing says how ZeRO works",
            where="--zero-stage",
            hint="Choose a stage with --zero-stage, or name a file with --ds-config",
        )
    sizes = (question.micro_batch_size, question.gradient_accumulation_steps)
    micro, steps = (1 if size is None else size for size in sizes)
    nvme = "nvme" in (question.offload_optimizer, question.offload_param)
    config = build_ds_config(
        zero_stage=0 if question.zero_stage == "none" else question.zero_stage,
        run=Run(target=question.target, cluster=question.cluster),
        precision=question.precision or "bf16",
        offload_optimizer=question.offload_optimizer,
        offload_param=question.offload_param,
        nvme_path=_SOME_FOLDER if nvme else None,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
    ).dump()
    if question.run().hidden_size is None:
        zero = config["zero_optimization"]
        config["zero_optimization"] = {key: value for key, value in zero.items() if value != "auto"}
    return Document(config, "ds_config")


def _with_sizes(document: Document, question: Question) -> Document:
    """The file with the sizes of the question."""
    data = {key: value for key, value in document.data.items() if key not in _NOT_FOR_MEMORY}
    zero = data.get("zero_optimization")
    if isinstance(zero, dict):
        data["zero_optimization"] = {key: value for key, value in zero.items() if key not in _SAVING}
    for key, size in ((MICRO, question.micro_batch_size), (STEPS, question.gradient_accumulation_steps)):
        if size is not None:
            data[key] = size
    given = question.micro_batch_size is not None or question.gradient_accumulation_steps is not None
    if given and all(isinstance(data.get(key), int) for key in (MICRO, STEPS)):
        data.pop(TRAIN, None)
    return Document(data, document.name, document.positions)


def _resolve(document: Document, question: Question) -> Resolution:
    if question.target == "trainer":
        training: dict[str, Any] = {}
        if question.precision is not None:
            training = {name: name == question.precision for name in ("bf16", "fp16")}
        run = replace(question.run(training), where=lambda name: "--precision")
        return resolve_settled(document, run)
    given: dict[str, Any] = {}
    if question.target == "accelerate":
        precision = question.precision or written_precision(document.data) or "bf16"
        given["mixed_precision"] = "no" if precision == "fp32" else precision
        for name, size in (
            ("batch_size", question.micro_batch_size),
            ("gradient_accumulation_steps", question.gradient_accumulation_steps),
        ):
            if size is not None:
                given[name] = size
    return resolve(document, question.run(given))


def _size(values: Mapping[str, Value], key: str, name: str) -> int:
    """The value of a key; accumulation is 1 where neither it nor the batch of all ranks is given.

    Raises:
        ConfigError: it is not known: DeepSpeed computes it from model-parallel sizes.
    """
    value = values[key].value if key in values else None
    if isinstance(value, int):
        return value
    if key == STEPS and value is None and TRAIN not in values:
        return 1
    option = f"--{name.replace('_', '-')}"
    raise ConfigError(f"the {name} is not known", where="ds_config", hint=f"Give it with {option}")


def _own_optimizer(target: Target, config: DeepSpeedConfig) -> OptimizerKind | None:
    """The optimizer if the ds_config has none.

    The Trainer's default is torch's fused AdamW (transformers training_args.py `optim`); a script is assumed
    to use torch's AdamW.
    """
    if config.optimizer is not None or target == "deepspeed":
        return None
    return optimizer_made(config, "adamw_torch_fused" if target == "trainer" else "adamw_torch")

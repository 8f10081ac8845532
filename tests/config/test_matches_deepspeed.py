"""zerokit's models against the DeepSpeed that is installed: keys, second names, defaults, choices, verdicts.

A release that adds, drops or changes a key fails here.
"""

from __future__ import annotations

import enum
import inspect
import json
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from tools.deepspeed_surface.interpreter import UNKNOWN
from tools.deepspeed_surface.surface import Surface, read_surface
from zerokit.config import Section, check_ds_config
from zerokit.config.base import second_names
from zerokit.config.key_index import section_at
from zerokit.config.key_index import sections as all_places
from zerokit.config.optimizer import params_of_optimizer
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS, TORCH_OPTIMIZERS
from zerokit.config.params import params_class
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.repairs import choices_at
from zerokit.config.scheduler import DEEPSPEED_SCHEDULERS, TORCH_SCHEDULERS, params_of_scheduler
from zerokit.documents import Document

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.runtime import lr_schedules  # noqa: E402

from tests.config.deepspeed_models import MODELS, SOURCE, ZERO  # noqa: E402

pytestmark = pytest.mark.torch

OBJECTS = {("tensor_parallel", "dtype"), ("tensor_parallel", "tp", "mpu"), ("tensor_parallel", "tp", "tp_group")}
"""Keys that take objects of Python, which a file cannot hold; the models refuse them."""

READ_LATER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("pipeline",): ("runtime/config.py", "runtime/pipe/engine.py"),
    ("data_parallel_size",): ("__init__.py",),
    ("data_efficiency", "data_sampling"): (
        "runtime/data_pipeline/constants.py",
        "runtime/data_pipeline/curriculum_scheduler.py",
    ),
    ("data_efficiency", "data_routing"): ("runtime/data_pipeline/constants.py",),
    ("tensor_parallel", "partition_config"): ("module_inject/autotp_config.py",),
    ("weight_quantization", "quantized_initialization"): ("inference/quantization/utils.py",),
    ("datastates_ckpt",): (),  # by the library DataStates, which gets the whole section
    ("allgather_size",): ("runtime/zero/config.py",),
    ("disable_allgather",): ("runtime/constants.py",),
}
"""Sections whose keys are not looked up when the file is parsed -> the files that name them."""


@pytest.fixture(scope="module")
def surface() -> Surface:
    return read_surface(SOURCE.parent)


def known(path: tuple[str, ...]) -> Any:
    """The field of the models at `path`, or None."""
    model = section_at(path[:-1])
    return model.model_fields.get(path[-1]) if model else None


def our_keys() -> set[tuple[str, ...]]:
    return {(*map(str, path), name) for path, model in all_places().items() for name in model.model_fields}


# Keys


def test_every_key_that_deepspeed_looks_up_is_known(surface: Surface) -> None:
    later = {("optimizer", "params", "max_grad_norm")}  # it is looked for, to be refused
    second = {("bfloat16",), ("micro_batch_size",)}
    for path in surface.keys:
        if path in OBJECTS | later or path[:1] in second or "*" in path:
            continue
        assert known(path) is not None, path


def test_every_key_of_the_models_is_read_by_deepspeed(surface: Surface) -> None:
    for path in our_keys() - set(surface.keys):
        files = next((files for start, files in READ_LATER.items() if path[: len(start)] == start), None)
        assert files is not None, path
        texts = [(SOURCE / file).read_text() for file in files]
        name = path[-1]
        assert not texts or any(f"'{name}'" in text or f'"{name}"' in text for text in texts), path


def test_sections_parsed_by_models_are_those_that_refuse_unknown_keys(surface: Surface) -> None:
    ours = {path for path, model in all_places().items() if model.read_by == "model"}
    assert ours == {path for path in surface.strict if path != ("bfloat16",)} == set(MODELS)


def test_removed_keys_are_those_that_deepspeed_refuses(surface: Surface) -> None:
    expected = {(key,) for key in ds_config._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    expected |= {(*ZERO, key) for key in ds_config._REMOVED_ZERO_CONFIG_KEYS}
    assert set(REMOVED_KEYS) == expected == surface.refused


# Defaults and choices


def test_defaults_are_deepspeeds(surface: Surface) -> None:
    compared = 0
    for path, key in surface.keys.items():
        field = known(path)
        if field is None or key.default is UNKNOWN or section_at(path) is not None:
            continue
        ours = field.get_default(call_default_factory=True)
        theirs = key.default.lower() if path[0] == "checkpoint" and isinstance(key.default, str) else key.default
        assert ours == theirs, path
        compared += 1
    assert compared > 250


@pytest.mark.parametrize("path", MODELS, ids=".".join)
def test_fields_second_names_and_defaults_are_those_of_the_model(path: tuple[str, ...]) -> None:
    ours, theirs = all_places()[path], MODELS[path]
    expected = {field.alias or name: (name, field) for name, field in theirs.model_fields.items()}
    expected = {key: item for key, item in expected.items() if (*path, key) not in OBJECTS}
    assert set(ours.model_fields) == set(expected)
    assert second_names(ours) == {key: name for key, (name, _) in expected.items() if key != name}
    for key, (_, field) in expected.items():
        default = ours.model_fields[key].get_default(call_default_factory=True)
        their_default = field.get_default(call_default_factory=True)
        if isinstance(default, Section):
            assert not isinstance(their_default, BaseModel) or default.dump(all=True) == their_default.model_dump()
        elif default is None:
            assert their_default in (None, {}), key
        else:
            assert default == their_default, key


@pytest.mark.parametrize("path", MODELS, ids=".".join)
def test_choices_are_those_of_the_model(path: tuple[str, ...]) -> None:
    for name, field in MODELS[path].model_fields.items():
        theirs = _choices(field.annotation)
        if theirs:
            ours = set(choices_at((*path, field.alias or name))) - {"auto"}
            assert ours == theirs - {ds_config.ZeroStageEnum.max_stage.value if name == "stage" else None} | (
                {3} if name == "stage" else set()
            ), name


def _choices(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {member.value for member in annotation}
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return set().union(*map(_choices, get_args(annotation)))


def test_bounds_are_at_least_as_narrow_as_deepspeeds(surface: Surface) -> None:
    outside = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    for path, key in surface.keys.items():
        for kind, bound in key.bounds.items():
            value = bound + outside[kind]
            data: Any = value
            for name in reversed(path):
                data = {name: data}
            assert [finding.rule for finding in check_ds_config(Document(data, ""))] == ["out-of-range"], path


@pytest.mark.parametrize(
    ("path", "theirs"),
    [
        (("tensor_parallel", "preset_model"), "module_inject/autotp_config.py"),
        (("expert_parallel", "preset_model"), "module_inject/auto_ep_presets"),
        (("expert_parallel", "expert_activation"), "moe/ep_experts.py"),
        (("expert_parallel", "combine_impl"), "module_inject/auto_ep_config.py"),
        (("expert_parallel", "score_func"), "module_inject/auto_ep_config.py"),
    ],
)
def test_names_that_deepspeed_looks_up_in_tables_are_there(path: tuple[str, ...], theirs: str) -> None:
    place = SOURCE / theirs
    files = [place] if place.is_file() else place.glob("*.py")
    text = "".join(file.read_text() for file in files)
    for name in choices_at(path):
        assert f'"{name}"' in text, name


def test_presets_of_experts_and_layers_are_all_known() -> None:
    from deepspeed.module_inject.auto_ep_presets.registry import available_preset_names
    from deepspeed.module_inject.autotp_config import AutoTPPresets, PartitionType
    from deepspeed.moe.ep_experts import EXPERT_ACTIVATIONS

    assert set(choices_at(("expert_parallel", "preset_model"))) == set(available_preset_names())
    assert set(choices_at(("expert_parallel", "expert_activation"))) == set(EXPERT_ACTIVATIONS)
    assert all(map(AutoTPPresets.get_preset, choices_at(("tensor_parallel", "preset_model"))))
    spec = ("tensor_parallel", "partition_config", "layer_specs", 0, "partition_type")
    assert set(choices_at(spec)) == {member.value for member in PartitionType}
    for name in ("fp32", "torch.float16", "half", "int8"):
        assert ds_config.DtypeEnum(name)
    assert {ds_config.DtypeEnum(name) for name in choices_at(("data_types", "param_dtype"))} == set(
        ds_config.DtypeEnum
    )


# Optimizers and schedulers


def test_optimizers_and_schedulers_are_those_of_deepspeed_and_torch() -> None:
    assert {name.lower() for name in DEEPSPEED_OPTIMIZERS} == set(ds_config.DEEPSPEED_OPTIMIZERS)
    assert set(DEEPSPEED_SCHEDULERS) == set(lr_schedules.VALID_LR_SCHEDULES)
    optimizers = {
        name
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
    }
    shadowed = {name for name in optimizers if name.lower() in ds_config.DEEPSPEED_OPTIMIZERS}
    assert set(TORCH_OPTIMIZERS) == optimizers - shadowed - {"Optimizer"}
    module = torch.optim.lr_scheduler
    schedulers = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, module.LRScheduler) and not name.startswith("_")
    }
    assert set(TORCH_SCHEDULERS) == schedulers - {"LRScheduler"}


def parameters(function: Any) -> dict[str, Any]:
    """The arguments of a constructor that a file can give, with their defaults."""
    found = list(inspect.signature(function).parameters.values())[1:]
    return {item.name: item.default for item in found if item.name not in ("optimizer", "params", "defaults")}


def same(ours: type[Section], theirs: dict[str, Any], *, ours_alone: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    assert set(ours.model_fields) - ours_alone == set(theirs)
    for name, default in theirs.items():
        field = ours.model_fields[name]
        if default is inspect.Parameter.empty:
            assert field.is_required(), name
        else:
            assert field.get_default(call_default_factory=True) == json.loads(json.dumps(default)), name


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_parameters_are_those_of_torchs_optimizers(name: str) -> None:
    ours = params_of_optimizer(name, {})
    assert ours is not None
    theirs = parameters(getattr(torch.optim, name).__init__)
    same(ours, theirs)


@pytest.mark.parametrize("name", DEEPSPEED_SCHEDULERS)
def test_parameters_are_those_of_deepspeeds_schedules(name: str) -> None:
    ours = params_of_scheduler(name)
    assert ours is not None
    theirs = parameters(getattr(lr_schedules, name).__init__)
    same(ours, theirs)


@pytest.mark.parametrize("name", TORCH_SCHEDULERS)
def test_parameters_are_those_of_torchs_schedulers(name: str) -> None:
    ours = params_of_scheduler(name)
    assert ours is not None
    if ours is not params_class("FunctionParams"):
        same(ours, parameters(getattr(torch.optim.lr_scheduler, name).__init__))


POPPED = {"torch_adam", "adam_w_mode", "fp32_optimizer_states"}
"""What DeepSpeed takes off before it calls the constructor (`get_optimizer_configuration`)."""


def test_parameters_are_those_of_deepspeeds_optimizers() -> None:
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    for name, on_gpu, on_cpu in (
        ("AdamW", FusedAdam, DeepSpeedCPUAdam),
        ("Adagrad", torch.optim.Adagrad, DeepSpeedCPUAdagrad),
        ("Lamb", FusedLamb, FusedLamb),
        ("Lion", FusedLion, DeepSpeedCPULion),
    ):
        ours = params_of_optimizer(name, {})
        assert ours is not None
        fused, offloaded = (parameters(cls.__init__) for cls in (on_gpu, on_cpu))
        theirs = {key: fused.get(key, offloaded.get(key)) for key in fused | offloaded}
        for handed_over in ("model_params", "adamw_mode", "max_grad_norm"):
            theirs.pop(handed_over, None)
        theirs.pop("fp32_optimizer_states" if name == "AdamW" else "", None)
        same(ours, theirs, ours_alone=POPPED - set(theirs) if name == "AdamW" else frozenset())  # type: ignore[arg-type]


def test_parameters_of_adam_from_torch() -> None:
    adam = params_of_optimizer("Adam", {"torch_adam": True, "adam_w_mode": False})
    adamw = params_of_optimizer("AdamW", {"torch_adam": True})
    assert adam is not None
    assert adamw is not None
    same(adam, parameters(torch.optim.Adam.__init__), ours_alone=POPPED)
    same(adamw, parameters(torch.optim.AdamW.__init__), ours_alone=POPPED)


def test_parameters_of_muon_are_those_that_the_engine_passes_on() -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    passed_on = {*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS, "muon_lr", "adam_lr"}
    ours = params_of_optimizer("Muon", {})
    assert ours is not None
    assert set(ours.model_fields) - POPPED - {"foreach", "per_head_muon"} == passed_on
    assert '"per_head_muon"' in (SOURCE / "__init__.py").read_text()

"""Leaf modules of stage 3: their parameters are gathered and their gradients reduced together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerokit.config.sections import LeafModule
from zerokit.memory.layout import Layout
from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.module_calls import Block, ModuleCall


def with_leaf_modules(calls: ModelCalls, layout: Layout, model_type: str, section: LeafModule | None) -> ModelCalls:
    """Merge the calls of each expert block if DeepSpeed treats the block as a leaf.

    Source: deepspeed/utils/z3_leaf_module.py apply_zero_leaf_module_config; stage3.py
    create_reduce_and_remove_grad_hooks.
    """
    if section is None:
        return calls
    order = {parameter: place for place, parameter in enumerate(layout.parameters)}

    def merged(block: Block) -> Block:
        path = _expert_block(block)
        if path is None or not any(_names(path, model_type, section)):
            return block
        return replace(block, calls=tuple(with_leaf(block, path)))

    def with_leaf(block: Block, path: str) -> Iterator[ModuleCall]:
        places = [place for place, call in enumerate(block.calls) if call.module.startswith(f"{path}.")]
        first, end = places[0], places[-1] + 1
        inner = block.calls[first:end]
        parameters = sorted((one for call in inner for one in call.parameters), key=lambda one: order[one])
        yield from block.calls[:first]
        yield ModuleCall(path, tuple(parameters), inner=inner)
        yield from block.calls[end:]

    return replace(calls, blocks=tuple(merged(block) for block in calls.blocks))


def not_counted(calls: ModelCalls | None, model_type: str, section: LeafModule | None) -> tuple[str, ...]:
    """Leaf modules in the section that are no expert blocks; the estimate ignores these.

    Args:
        calls: of the model, or None if unknown.
    """
    if section is None:
        return ()
    counted = set(LeafModule.defaults().classes)
    for block in calls.blocks if calls is not None else ():
        path = _expert_block(block)
        if path is not None:
            counted.update(_names(path, model_type, section))
    named = (*section.classes, *section.names, *section.name_suffixes)
    return tuple(dict.fromkeys(name for name in named if name not in counted))


def _expert_block(block: Block) -> str | None:
    """The full name of a layer's expert block."""
    for call in block.calls:
        if call.inner:
            return call.module
        if call.parts:
            return call.module.rpartition(".")[0]
    return None


def _names(path: str, model_type: str, section: LeafModule) -> Iterator[str]:
    """The entries of the section that match the expert block at `path`, by class or by name."""
    for name in section.classes:
        package, _, short = name.rpartition(".")
        owner = short.removesuffix("SparseMoeBlock")
        is_block = owner != short and owner.lower() == model_type.replace("_", "")
        if is_block and package in ("", f"transformers.models.{model_type}.modeling_{model_type}"):
            yield name
    yield from (name for name in section.names if name == path)
    yield from (suffix for suffix in section.name_suffixes if path.endswith(suffix))

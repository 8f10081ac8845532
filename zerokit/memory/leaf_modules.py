"""Modules that stage 3 takes as one: their parameters are gathered, and their gradients reduced, together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerokit.config.leaf_module import LeafModule
from zerokit.memory.layout import Layout
from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.module_calls import Block, ModuleCall


def with_leaf_modules(
    calls: ModelCalls, layout: Layout, model_type: str, section: LeafModule | None
) -> ModelCalls:
    """The same calls with those of a mixture of experts in one, where DeepSpeed takes its block for a leaf.

    Source: deepspeed/runtime/zero/leaf_module_config.py DEFAULT_LEAF_MODULE_CLASSES; what is done with them,
    stage3.py create_reduce_and_remove_grad_hooks.
    """
    if section is None:
        return calls
    order = {id(parameter): place for place, parameter in enumerate(layout.parameters)}
    by_class = any(f".modeling_{model_type}." in name for name in section.classes)

    def is_leaf(path: str) -> bool:
        return by_class or path in section.names or path.endswith(tuple(section.name_suffixes))

    def merged(block: Block) -> Block:
        path = next((call.module.rpartition(".")[0] for call in block.calls if call.parts), None)
        if path is None or not is_leaf(path):
            return block
        return replace(block, calls=tuple(with_leaf(block, path)))

    def with_leaf(block: Block, path: str) -> Iterator[ModuleCall]:
        places = [place for place, call in enumerate(block.calls) if call.module.startswith(f"{path}.")]
        first, end = places[0], places[-1] + 1
        inner = block.calls[first:end]
        parameters = sorted(
            (one for call in inner for one in call.parameters), key=lambda one: order[id(one)]
        )
        yield from block.calls[:first]
        yield ModuleCall(path, tuple(parameters), inner=inner)
        yield from block.calls[end:]

    return replace(calls, blocks=tuple(merged(block) for block in calls.blocks))

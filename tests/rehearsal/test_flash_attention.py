"""The stand-in for flash-attn: found where the package would be, with the allocations of its kernels."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.rehearsal.flash_attention_questions import (
    flash_attn_4_memory,
    flash_attn_4_model,
    flash_attn_4_refusal,
    flash_attn_found,
    flash_attn_memory,
    flash_attn_model,
    flash_attn_refusals,
    flash_attn_version,
    hub_kernels,
)
from tests.rehearsal.questions import answer
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.stand_ins import (
    flash_attention_2,
    flash_attention_3,
    flash_attention_calls,
    flash_attention_layers,
    flash_attention_rotary,
)
from zerokit.rehearsal.stand_ins.flash_attention_calls import Call
from zerokit.rehearsal.stand_ins.packages import known_packages
from zerokit.rehearsal.timing import operators


def test_transformers_finds_all_flash_attn_packages() -> None:
    assert answer(flash_attn_found) == {"2": True, "3": True, "4": True, "version": "2.8.3", "package": "flash_attn"}


def _with_path(folder: Path) -> tuple[tuple[str, str]]:
    """An environment in which Python finds the modules in `folder` first."""
    return (("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))),)


def test_a_flash_attn_that_is_installed_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "flash_attn.py").write_text("__version__ = 'of the user'\n")
    assert answer(flash_attn_version, environment=_with_path(tmp_path)) == "of the user"


_HUB = """
__version__ = "{version}"


def get_kernel(repo_id, revision=None, version=None):
    raise OSError(f"no {{repo_id}} for this machine")


def has_kernel(repo_id):
    return False
"""


@pytest.mark.parametrize("version", ["0.11.7", "0.16.0"])
def test_flash_attention_of_the_hub_is_stood_in_for_and_other_kernels_are_named(tmp_path: Path, version: str) -> None:
    (tmp_path / "kernels.py").write_text(_HUB.format(version=version), encoding="utf-8")
    found = answer(hub_kernels, environment=_with_path(tmp_path))
    assert found["2"] == found["3"] == found["sinks"] == [1, 256, 4, 128]
    assert (found["with sinks"], found["without"]) == (True, False)
    assert found["has"] == [True, False]
    assert found["someone/relu"] == "no someone/relu for this machine"
    # Since 0.15 a version has to be named, and a script that names none goes on without the kernel.
    unnamed = "flash_attn3" if version == "0.11.7" else "no kernels-community/flash-attn3 for this machine"
    assert found["kernels-community/flash-attn3"] == unnamed
    assert "stand-in is not like what it stands for" in found["limit"]
    looked_for, called, said = found["said"]
    assert said.startswith("the Hub's kernel someone/relu could not be loaded here (OSError: no someone/relu")
    module = "the Hub's kernel may have flash_attention_3.flash_attn_interface"
    assert not found["lacks"]
    assert looked_for.startswith(f"{module}.supports_nothing, and its stand-in does not (")
    assert called.startswith(f"{module}._flash_attn_forward, and")


def test_flash_attn_allocates_what_its_kernels_do() -> None:
    measured = answer(flash_attn_memory)
    tokens, padded_head = 2 * 500 * 4, 64
    saved = 3 * tokens * padded_head * 2 + tokens * padded_head * 2 + 2 * 4 * 500 * 4
    random_state = 2 * 8
    assert measured["kept for backward"] == saved + random_state
    rows = 2 * 512 * 4
    gradient, padded_gradient = 3 * tokens * padded_head * 2, tokens * padded_head * 2
    assert measured["backward"] == gradient + padded_gradient + rows * 4 + rows * padded_head * 4
    # Version 3 accumulates grouped gradients in float32.
    query_rows, key_rows = 2 * 512 * 8, 2 * 512 * 2
    accumulators = query_rows * 4 * 2 + query_rows * 128 * 4 + 2 * key_rows * 128 * 4 + 8 * 2 * 8 * 4
    assert measured["version 3 backward"] == 2 * 500 * (8 + 2 + 2) * 128 * 2 + accumulators


@pytest.mark.parametrize(
    ("capability", "query_rows", "key_rows", "packed_rows", "packed_keys"),
    [("9.0", 512, 512, 800, 896), ("10.0", 512, 512, 896, 1280), ("12.0", 512, 512, 704, 704)],
)
def test_flash_attn_4_accumulates_in_the_tiles_of_the_card(
    capability: str, query_rows: int, key_rows: int, packed_rows: int, packed_keys: int
) -> None:
    measured = answer(flash_attn_4_memory, capability)
    assert measured["lse"] == [2, 8, 500]
    gradients = (8 + 2 + 2) * 128 * 2
    for name, tokens, of_queries, of_keys in (
        ("equal", 2 * 500, 2 * query_rows, 2 * key_rows),
        ("packed", 500, packed_rows, packed_keys),
    ):
        accumulators = 8 * of_queries * (128 + 2) * 4 + 2 * 2 * of_keys * 128 * 4
        assert measured[name] == tokens * gradients + accumulators
    assert "'qv' of flash-attn-4" in measured["refused"]


def test_flash_attn_norms_keep_the_residual_and_a_figure_per_row() -> None:
    measured = answer(flash_attn_memory)
    numbers, rows = 2 * 500 * 256, 2 * 500
    assert measured["norm"] == numbers * (2 + 4) + rows * 4
    of_weight, statistics = 256 * 2, rows * 4  # those are given back
    assert measured["gradients of norm"] == numbers * (2 + 4) + of_weight - statistics


def test_flash_attn_refuses_what_its_kernels_refuse() -> None:
    refusals = answer(flash_attn_refusals)
    assert "fp16 and bf16" in refusals["float32"]
    assert "at most 256" in refusals["head 264"]
    assert "CUDA" in refusals["cpu"]


def test_flash_attn_4_fails_where_its_kernels_do() -> None:
    assert answer(flash_attn_4_refusal, "7.5").startswith("forward: Unsupported compute capability")
    assert answer(flash_attn_4_refusal, "8.0").startswith("backward: Unsupported compute capability")
    assert not answer(flash_attn_4_refusal, "12.0")


@pytest.mark.parametrize(
    ("model", "backend"), [(flash_attn_model, "flash_attention_2"), (flash_attn_4_model, "flash_attention_4")]
)
def test_a_model_trains_on_padded_and_packed_batches(model: Callable[..., Any], backend: str) -> None:
    trained = answer(model)
    assert trained["backend"] == backend
    assert trained["without gradient"] == []
    assert {"aten::_flash_attention_forward", "aten::_flash_attention_backward"} <= set(trained["operators"])


def test_functions_have_the_parameters_of_the_package_that_libraries_look_for() -> None:
    parameters = inspect.signature(flash_attention_2.flash_attn_varlen_func).parameters
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    assert list(parameters)[:7] == ["q", "k", "v", *lengths]
    assert parameters["q"].default is inspect.Parameter.empty
    assert parameters["window_size"].default == (-1, -1)
    assert list(inspect.signature(flash_attention_3.flash_attn_func).parameters)[3:6] == [
        "softmax_scale",
        "causal",
        "qv",
    ]


def test_an_option_that_the_package_does_not_have_is_refused_by_the_name_of_the_function() -> None:
    tensor = torch.empty(1, 8, 2, 8)
    with pytest.raises(TypeError, match=r"flash_attn_func\(\) got an unexpected keyword argument 'sink'"):
        flash_attention_2.flash_attn_func(tensor, tensor, tensor, sink=1)
    with pytest.raises(TypeError, match=r"flash_attn_kvpacked_func\(\) missing a required argument: 'kv'"):
        flash_attention_2.flash_attn_kvpacked_func(tensor)


def test_packed_sequences_and_windows_reach_the_call() -> None:
    starts = torch.tensor([0, 3, 8], dtype=torch.int32)
    packed = Call.of({"causal": True, "window_size": (4, 0), "cu_seqlens": starts, "max_seqlen": 5})
    assert packed == Call(causal=True, window=(4, 0), lengths=(starts, starts), longest=(5, 5))
    given = {"dropout_p": 0.1, "causal": False, "window_size_left": 2, "window_size_right": 3}
    ring = Call.of({**given, "return_softmax": True, "deterministic": True}, generation=3)
    assert ring == Call(0.1, window=(2, 3), deterministic=True, return_softmax=True, generation=3)


def test_packed_sequences_and_windows_are_timed_by_the_pairs_that_they_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    time = SimpleNamespace(attention=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(flash_attention_calls, "rank_time", lambda: time)
    tokens = torch.empty((32768, 32, 128), dtype=torch.bfloat16, device="meta")
    starts = torch.empty(65, dtype=torch.int32)
    for given in (
        {"max_seqlen": 16384},
        {"max_seqlen": 20000},
        {"max_seqlen": 10**6},
        {"max_seqlen": 32768, "window_size": (1023, -1)},
    ):
        call = Call.of({"causal": True, "cu_seqlens": starts, **given})
        flash_attention_calls._take_time(tokens, tokens[:, :8], call, backward=False)
    shape = (32, 8), (128, True, "bfloat16")
    assert asked == [
        ("flash_attention_2", False, batch, *shape[0], length, length, *shape[1], window)
        for batch, length, window in [
            (2, 16384, None), (32768 / 20000, 20000, None), (1, 32768, None), (1, 32768, 1024)
        ]
    ]  # fmt: skip
    costs = CardCosts(Cluster(8, gpu=find_gpu("H100")))
    two, part, one, windowed = (costs.attention(*arguments) for arguments in asked)
    assert two < part < one
    assert windowed < one / 10


def test_torch_s_own_calls_are_timed_by_the_same_rule() -> None:
    def tensor(heads: int) -> operators.TensorUse:
        return operators.TensorUse(3, "bfloat16", 0, (32768, heads, 128), (1, 1, 1))

    given = (tensor(32), tensor(8), tensor(8), None, None, 20000, 20000, 0.0, 1, 0, None, 1023, -1)
    call = operators.Call("aten::_flash_attention_forward", given)
    assert operators.attention_arguments(call) == (
        *("flash_attention_2", False, 32768 / 20000, 32, 8, 20000, 20000, 128, True, "bfloat16", 1024),
    )


def test_rows_of_a_group_are_gathered_and_their_gradient_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in flash_attn.utils.distributed, for two ranks that hold the same."""
    layers = flash_attention_layers
    assert layers.__name__.endswith(known_packages()[0].modules["flash_attn.utils.distributed"])
    monkeypatch.setattr(layers.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(layers.dist, "all_gather_into_tensor", lambda whole, x, group: whole.copy_(torch.cat([x, x])))
    monkeypatch.setattr(layers.dist, "reduce_scatter_tensor", lambda part, x, group: part.copy_(x.chunk(2)[0] * 2))
    x = torch.ones(2, 3, requires_grad=True)
    whole = layers.all_gather(x, None)
    assert whole.shape == (4, 3)
    layers.reduce_scatter(whole, None).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [2]


def test_rotary_embeddings_are_turned_in_place_beside_a_table_of_angles() -> None:
    assert flash_attention_rotary.__name__.endswith(known_packages()[0].modules["flash_attn.layers.rotary"])
    rotary = flash_attention_rotary.RotaryEmbedding(dim=8, base=1e4, interleaved=False)
    weight = torch.ones(1, requires_grad=True)
    qkv = torch.ones(2, 5, 3, 4, 8, dtype=torch.bfloat16) * weight.bfloat16()
    assert rotary(qkv).data_ptr() == qkv.data_ptr()
    q, kv = torch.ones(2, 7, 4, 8) * weight, torch.ones(2, 7, 2, 2, 8) * weight
    turned = rotary(q, kv=kv, seqlen_offset=3)
    assert [part.data_ptr() for part in turned] == [q.data_ptr(), kv.data_ptr()]
    assert [(part.shape, part.dtype) for part in rotary._angles(5, q)] == [((10, 4), torch.float32)] * 2
    assert rotary.state_dict() == {}
    (turned[0].sum() + turned[1].sum()).backward()
    assert weight.grad is not None


def test_scripts_find_einops_where_flash_attn_has_it() -> None:
    import einops

    assert flash_attention_layers.rearrange is einops.rearrange
    assert {"rearrange", "repeat"} <= set(flash_attention_layers.__all__)

"""Decodes requests with a loaded model: finished rows leave the batch, and new prompts enter it.

Every pass is one call of the model: the prompts that enter, or the next token of all rows. Rows end at the same
column, so that one cache serves them; shorter ones have padding on their left. Models and options that such a
batch cannot serve go through transformers' ``generate``, batch by batch.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from zerokit.generation import CACHE_NAMES
from zerokit.generation.requests import Decoded, Queue, Request, rows_at_once
from zerokit.generation.sampling import completion_key, draw_tokens, looks_at_tokens
from zerokit.memory.generation import CACHE_SLACK

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

_FILLER = 2**31 - 1
"""What is left of a row in its history of tokens. Stop strings treat it as a token without text."""
_PATIENCE = 0.5
"""Passes' worth of rows that may have ended before a batch is made anew, which costs about a pass."""
_METHODS = (
    *("generate", "prepare_inputs_for_generation", "_prepare_position_ids_for_generation"),
    *("_update_model_kwargs_for_generation", "_prepare_cache_for_generation"),
)
"""A model that replaces one of these has inputs or a state that the loop does not know."""
_PREPARE = inspect.signature(GenerationMixin.prepare_inputs_for_generation)
_CACHE = "cache" if "cache" in _PREPARE.parameters else "past_key_values"
"""The name of the cache in this release of transformers."""

_DISTANCES = ("bloom", "mpt")
"""Models without positions: their attention (ALiBi) knows the distance of two tokens alone."""


@dataclass
class _Row:
    """One completion of a request."""

    request: Request
    number: int
    """Which of the request's completions."""
    key: int
    """Seeds its samples."""
    start: int = 0
    """Column of its first token."""
    is_live: bool = True

    @property
    def prompt_end(self) -> int:
        return self.start + len(self.request.tokens)


class _BufferedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not followed
    """Keys and values of a layer in buffers with room: new ones are written, where DynamicLayer copies all."""

    def __init__(self, length: int, buffers: list[torch.Tensor]) -> None:
        """`buffers`: keys and values, [rows, heads, columns, size], of which `length` columns are in use."""
        super().__init__()
        self._buffers = buffers
        if buffers:
            self.lazy_initialization(*buffers)
            self.keys, self.values = (buffer[..., :length, :] for buffer in buffers)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append columns; returns all."""
        length, end = self.keys.shape[-2], self.keys.shape[-2] + keys.shape[-2]
        if end > self._buffers[0].shape[-2]:
            room = (0, 0, 0, end + CACHE_SLACK - length)
            self._buffers = [torch.nn.functional.pad(states, room) for states in (self.keys, self.values)]
        for buffer, states in zip(self._buffers, (keys, values), strict=True):
            buffer[..., length:end, :] = states
        self.keys, self.values = (buffer[..., :end, :] for buffer in self._buffers)
        return self.keys, self.values


class _Batch:
    """Rows that the model continues together."""

    def __init__(self, rows: list[_Row], tokens: torch.Tensor, width: int, cache: DynamicCache) -> None:
        """`tokens`: int64, [rows, columns]; `width` columns are in use, one more than the cache has."""
        self.rows, self.tokens, self.width, self.cache = rows, tokens, width, cache
        device, starts = tokens.device, [row.start for row in rows]
        self.starts = torch.tensor(starts, device=device)[:, None]
        self.mask: torch.Tensor | None = None
        if any(starts):
            self.mask = (torch.arange(tokens.shape[1], device=device) >= self.starts).long()
        self.keys = torch.tensor([row.key for row in rows], dtype=torch.int32, device=device)
        self.prompt_ends = torch.tensor([row.prompt_end for row in rows], device=device)
        groups: dict[tuple[int, int], list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault((row.start, len(row.request.tokens)), []).append(place)
        self.groups = [(*group, torch.tensor(places, device=device)) for group, places in groups.items()]
        """Start, prompt length and places of rows that are equal in both: processors of scores look at them."""
        self.longest = max(len(row.request.tokens) for row in rows)


def _join(parts: Sequence[_Batch], room: int) -> _Batch | None:
    """One batch of all rows that are live, with `room` columns for new tokens; None if no row is."""
    kept = [(part, [at for at, row in enumerate(part.rows) if row.is_live]) for part in parts]
    kept = [(part, places) for part, places in kept if places]
    if not kept:
        return None
    rows = [part.rows[at] for part, places in kept for at in places]
    width = max(part.width - part.rows[at].start for part, places in kept for at in places)
    for part, places in kept:
        for at in places:
            part.rows[at].start += width - part.width
    indices = [torch.tensor(places, device=part.tokens.device) for part, places in kept]
    histories = [part.tokens[:, : part.width] for part, _ in kept]
    tokens = _aligned(histories, indices, width, room, dim=1, fill=_FILLER)
    cache = DynamicCache()
    sources = [part.cache.layers for part, _ in kept]
    while sources[0]:  # a layer is freed as soon as it is copied
        layers = [each.pop(0) for each in sources]
        states = zip(*((layer.keys, layer.values) for layer in layers if layer.is_initialized), strict=True)
        buffers = [_aligned(each, indices, width - 1, CACHE_SLACK, dim=each[0].dim() - 2, fill=0) for each in states]
        cache.layers.append(_BufferedLayer(width - 1, buffers))
    return _Batch(rows, tokens, width, cache)


def _aligned(
    sources: Sequence[torch.Tensor], indices: list[torch.Tensor], end: int, room: int, *, dim: int, fill: int
) -> torch.Tensor:
    """The rows `indices` of all sources: their columns, in `dim`, end at `end`, and have `room` behind."""
    shape = [sum(map(len, indices)), *sources[0].shape[1:]]
    shape[dim] = end + room
    target, row = sources[0].new_full(shape, fill), 0
    for source, places in zip(sources, indices, strict=True):
        columns = min(end, source.shape[dim])
        part = source.narrow(dim, source.shape[dim] - columns, columns)
        target[row : row + len(places)].narrow(dim, end - columns, columns).copy_(part[places])
        row += len(places)
    return target


@dataclass(frozen=True)
class Decoding:
    """How requests are decoded."""

    config: GenerationConfig
    seed: int = 0
    batch_size: int = 8
    """Rows of a batch at most; without effect where `max_batch_tokens` is set."""
    max_batch_tokens: int | None = None
    """Rows of a batch x (tokens of the longest prompt + new tokens), at most. One row is always allowed."""


class Decoder:
    """Decodes a queue of requests with one model."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        decoding: Decoding,
        *,
        device: torch.device,
        synced: bool = False,
    ) -> None:
        """Prepare a model that is loaded and in evaluation mode.

        Args:
            model: of transformers, or of peft around it.
            tokenizer: the model's, for stop strings.
            decoding: sampling options and sizes.
            synced: every pass takes all ranks of the default process group, as under ZeRO-3. A rank without
                work runs one token through the model, until no rank has any.
        """
        self.model, self.tokenizer, self.decoding = model, tokenizer, decoding
        self.base = without_adapter(model)
        self.device, self.synced = device, synced
        # As `generate` does: it takes from the model what the config leaves open.
        self.config, _ = self.base._prepare_generation_config(decoding.config)
        self.base._prepare_special_tokens(self.config, True, device=self.device)
        self.new_tokens = int(self.config.max_new_tokens)
        text = self.base.config.get_text_config(decoder=True)
        self._most = getattr(text, "max_position_embeddings", None) or 2**31 - 1
        """Tokens that a row may have. A row that is done keeps its last position."""
        self.is_continuous = _is_continuous(self.model, self.base, self.config)
        self._has_beams = (self.config.num_beams or 1) > 1
        self._is_seeded_alone = self.config.do_sample and (self._has_beams or bool(self.config.watermarking_config))
        names = inspect.signature(self.base.forward).parameters
        self._options = {name: value for name, value in (("use_cache", True), ("logits_to_keep", 1)) if name in names}
        self._takes_positions = "position_ids" in names
        self._has_equal_lengths = _counts_columns(self.base)
        self.config.max_length = None  # the default counts the prompt
        self._criteria = self.base._get_stopping_criteria(self.config, StoppingCriteriaList(), tokenizer)
        # Those of one batch and of the next: some have a value for each token of the vocabulary.
        self._processors = lru_cache(maxsize=2 * self._room(1))(self._make_processors)
        if not (self.is_continuous or self.base.config.is_encoder_decoder):  # `generate` shows padding to processors
            self._has_equal_lengths |= any(map(looks_at_tokens, self._processors(1)))

    @torch.no_grad()
    def run(self, queue: Queue, done: Callable[[Decoded], None]) -> None:
        """Decode what the queue gives this rank; `done` gets each request as soon as it is complete."""
        self._queue, self._done = queue, done
        self._has_more = True
        self._pending: deque[list[_Row]] = deque()
        self._made: dict[int, dict[int, list[int]]] = {}
        if self.is_continuous:
            self._run_continuously()
        else:
            self._run_batches()

    def _run_continuously(self) -> None:
        batch: _Batch | None = None
        wasted = 0
        while True:
            entering: list[list[_Row]] = []
            if batch is None or wasted > _PATIENCE * len(batch.rows) or batch.width >= batch.longest + self.new_tokens:
                entering = self._take([row for row in batch.rows if row.is_live] if batch else [])
                if batch is not None and not entering:
                    batch = _join([batch], self.new_tokens)
                wasted = 0
            if not self._any_rank(bool(entering or batch)):
                return
            if entering:
                batch = _join([*([batch] if batch else []), self._prefill(entering)], self.new_tokens)
            elif batch is not None:
                self._advance(batch)
            else:  # take part in the pass of other ranks
                token = torch.zeros(1, 1, dtype=torch.long)
                self._forward(token, None, token, DynamicCache())
            if batch is not None:
                dead = sum(not row.is_live for row in batch.rows)
                wasted += dead
                if dead == len(batch.rows):
                    batch = None

    def _take(self, live: list[_Row]) -> list[list[_Row]]:
        """Rows of each request that enters a batch of `live` rows."""
        taken: list[list[_Row]] = []
        count = len(live)
        longest = max((len(row.request.tokens) for row in live), default=0)
        gets_all = True
        while True:
            if not self._pending:
                # By tokens, only a first request gives the room of a batch.
                is_known = longest or self.decoding.max_batch_tokens is None
                room = self._room(longest) - count if is_known else 1
                most = room // (self.config.num_return_sequences or 1)
                if (count and most < 1) or not gets_all or not self._has_more:
                    break
                gets_all = self._fetch(max(1, most))
                continue
            rows = self._pending[0]
            longest = max(longest, len(rows[0].request.tokens))
            if count and count + len(rows) > self._room(longest):
                break
            if not self.is_continuous and taken and not self._can_join(rows, taken[0]):
                break
            taken.append(self._pending.popleft())
            count += len(rows)
        return taken

    def _can_join(self, rows: list[_Row], others: list[_Row]) -> bool:
        """Whether one call of `generate` can decode both."""
        if self._has_equal_lengths and len(rows[0].request.tokens) != len(others[0].request.tokens):
            return False
        return len(rows) == len(others) and not self._is_seeded_alone

    def _fetch(self, most: int) -> bool:
        """Get requests from the queue; False if it gives fewer, which leaves the others to other ranks."""
        requests = self._queue.take(most) or []
        self._has_more = bool(requests)
        for request in requests:
            self._made[request.index] = {}
            keys = [completion_key(self.decoding.seed, request.index, at) for at in range(request.num_completions)]
            rows = [_Row(request, number, key) for number, key in enumerate(keys)]
            size = len(rows) if self._has_beams or self._is_seeded_alone else self._room(len(request.tokens))
            self._pending += [rows[start : start + size] for start in range(0, len(rows), size)]
        return len(requests) == most

    def _room(self, longest: int) -> int:
        """Rows that a batch may have whose longest prompt has `longest` tokens."""
        limits = self.decoding.batch_size, self.decoding.max_batch_tokens
        return rows_at_once(*limits, longest + self.new_tokens)

    def _any_rank(self, has_work: bool) -> bool:
        if not self.synced:
            return has_work
        flag = torch.tensor(float(has_work), device=self.device)
        torch.distributed.all_reduce(flag)
        return bool(flag.item())

    def _prefill(self, entering: list[list[_Row]]) -> _Batch:
        """Run prompts, each once, and choose the first token of every row."""
        prompts = [rows[0].request.tokens for rows in entering]
        ids, mask = pad(prompts, 0, on_left=True)
        width = ids.shape[1]
        cache = DynamicCache()
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        scores = self._forward(ids, None if mask.all() else mask, positions, cache)
        rows = [row for each in entering for row in each]
        for row in rows:
            row.start = width - len(row.request.tokens)
        if len(rows) > len(entering):
            places = torch.tensor([place for place, each in enumerate(entering) for _ in each])
            cache.batch_select_indices(places.to(self.device))
            ids, mask, scores = ids[places], mask[places], scores[places.to(self.device)]
        tokens = torch.nn.functional.pad(ids.masked_fill(mask == 0, _FILLER), (0, 1)).to(self.device)
        batch = _Batch(rows, tokens, width, cache)
        self._choose(batch, scores)
        return batch

    def _advance(self, batch: _Batch) -> None:
        """Choose the next token of every row."""
        end = batch.width
        mask = None if batch.mask is None else batch.mask[:, :end]
        positions = (end - 1 - batch.starts).clamp(max=self._most - 1)
        scores = self._forward(batch.tokens[:, end - 1 : end], mask, positions, batch.cache)
        self._choose(batch, scores)

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Scores of the next token after the last column: float32, [rows, vocabulary]."""
        options = {**self._options, _CACHE: cache}
        options |= {"position_ids": positions.to(self.device)} if self._takes_positions else {}
        inputs = self.base.prepare_inputs_for_generation(
            ids.to(self.device),
            attention_mask=None if mask is None else mask.to(self.device),
            is_first_iteration=cache.get_seq_length() == 0,
            **options,
        )
        scores: torch.Tensor = self.model(**inputs, return_dict=True).logits[:, -1].float()
        return scores

    def _choose(self, batch: _Batch, scores: torch.Tensor) -> None:
        """Append a token to every row, and hand over the rows that it ends."""
        scores = self._process(batch, scores)
        if self.config.do_sample:
            chosen = draw_tokens(scores, batch.keys, batch.width - batch.prompt_ends)
        else:
            chosen = scores.argmax(-1)
        batch.tokens[:, batch.width] = chosen
        batch.width += 1
        history = batch.tokens[:, : batch.width]
        ended = self._criteria(history, None).tolist() if self._criteria else [False] * len(batch.rows)
        for place, row in enumerate(batch.rows):
            most = min(row.prompt_end + self.new_tokens, row.start + self._most)
            if row.is_live and (ended[place] or batch.width >= most):
                row.is_live = False
                self._finish(row, history[place, row.prompt_end :].tolist())

    def _process(self, batch: _Batch, scores: torch.Tensor) -> torch.Tensor:
        """Apply transformers' processors, those that look at a row's tokens to these alone, without padding."""
        lists = [self._processors(length) for _, length, _ in batch.groups]
        for number, processor in enumerate(lists[0]):
            if not looks_at_tokens(processor):
                scores = processor(batch.tokens, scores)
                continue
            processed = torch.empty_like(scores)
            for (start, _, places), processors in zip(batch.groups, lists, strict=True):
                tokens = batch.tokens[places, start : batch.width]
                processed[places] = processors[number](tokens, scores[places])
            scores = processed
        return scores

    def _make_processors(self, prompt_length: int) -> LogitsProcessorList:
        config = copy.deepcopy(self.config)
        config.max_length = prompt_length + self.new_tokens
        return self.base._get_logits_processor(config, input_ids_seq_length=prompt_length, device=self.device)

    def _finish(self, row: _Row, tokens: list[int]) -> None:
        made = self._made[row.request.index]
        made[row.number] = tokens
        if len(made) == row.request.num_completions:
            del self._made[row.request.index]
            prompt = () if self.base.config.is_encoder_decoder else row.request.tokens
            self._done(Decoded(row.request.index, [made[number] for number in range(len(made))], prompt))

    def _run_batches(self) -> None:
        """Decode with transformers' `generate`, batch by batch."""
        while True:
            entering = self._take([])
            if not self._any_rank(bool(entering)):
                return
            if entering:
                self._generate(entering)
                continue
            # This ends the placeholder, not a smaller max_new_tokens: a cache of fixed size is made for those, and
            # it takes part as long as any rank.
            criteria = StoppingCriteriaList([lambda ids, *_, **__: ids.new_ones(len(ids), dtype=torch.bool)])
            self._call_generate([[0]], self.decoding.config, stopping_criteria=criteria)

    def _generate(self, entering: list[list[_Row]]) -> None:
        config = copy.deepcopy(self.decoding.config)
        rows = [row for each in entering for row in each]
        options: dict[str, Any] = {}
        config.num_return_sequences = len(entering[0])
        if self._is_seeded_alone:
            torch.manual_seed(rows[0].key)
        elif self.config.do_sample:
            config.do_sample, config.num_return_sequences = False, 1
            keys = torch.tensor([row.key for row in rows], dtype=torch.int32, device=self.device)
            options["logits_processor"] = LogitsProcessorList([partial(self._draw, keys)])
            entering = [[row] for row in rows]
        made = self._call_generate([each[0].request.tokens for each in entering], config, **options)
        for row, tokens in zip(rows, made, strict=True):
            self._finish(row, tokens)

    def _draw(self, keys: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave each row the one token that is drawn for it, which greedy decoding then takes."""
        for processor in self._processors(1):
            scores = scores if looks_at_tokens(processor) else processor(ids, scores)
        chosen = draw_tokens(scores, keys, torch.full_like(keys, ids.shape[1] - self._prompt_width))
        return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)

    def _call_generate(
        self, prompts: list[Sequence[int]], config: GenerationConfig, **options: Any
    ) -> list[list[int]]:
        """New tokens of every row."""
        has_encoder = self.base.config.is_encoder_decoder
        ids, mask = pad(prompts, config.pad_token_id, on_left=not has_encoder)
        self._prompt_width = 1 if has_encoder else ids.shape[1]
        hook = self.base.register_forward_pre_hook(_trim_mask, with_kwargs=True)
        try:
            sequences = self.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                generation_config=config,
                tokenizer=self.tokenizer,  # for stop strings
                synced_gpus=self.synced,
                **options,
            )
        finally:
            hook.remove()
        made: list[list[int]] = sequences[:, self._prompt_width :].tolist()
        return made


def without_adapter(model: Any) -> Any:
    """The model of transformers in what peft has put around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _trim_mask(
    module: Any, arguments: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give a pass without a cache a mask as long as its tokens.

    A rank that is done repeats its last pass until all ranks are. `_sample` of transformers lengthens only its mask.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is not None and mask is not None and all(inputs.get(name) is None for name in CACHE_NAMES):
        inputs["attention_mask"] = mask[:, : ids.shape[1]]
    return arguments, inputs


def _is_continuous(model: Any, base: Any, config: GenerationConfig) -> bool:
    """Whether rows of different age can share a batch: keys and values are all the state, and each row has its own."""
    adapter = getattr(model, "active_peft_config", None)
    return (
        not base.config.is_encoder_decoder
        and not base._is_stateful
        and base._supports_default_dynamic_cache()
        and all(getattr(type(base), name) is getattr(GenerationMixin, name) for name in _METHODS)
        and not (adapter is not None and adapter.is_prompt_learning)
        and not _counts_columns(base)
        and (config.num_beams or 1) == 1
        and config.use_cache is not False
        and not (config.max_time or config.cache_implementation or config.watermarking_config)
        and not config.prefill_chunk_size
        and getattr(base.config.get_text_config(decoder=True), "attention_chunk_size", None) is None
        and {type(layer) for layer in DynamicCache(config=base.config).layers}
        <= {DynamicLayer, DynamicSlidingWindowLayer}
    )


def _counts_columns(base: Any) -> bool:
    """Whether the positions of a decoder are those of the batch's columns, padding included."""
    if base.config.is_encoder_decoder or base.config.model_type in _DISTANCES:
        return False
    return "position_ids" not in inspect.signature(base.forward).parameters


def pad(sequences: Sequence[Sequence[int]], token: int, *, on_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask (0 for padding) of sequences: int64, [sequences, longest]."""
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), token)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(longest - len(sequence), None) if on_left else slice(len(sequence))
        ids[row, place] = torch.tensor(sequence)
        mask[row, place] = 1
    return ids, mask

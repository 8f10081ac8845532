"""Cross entropy of a model's logits in chunks, without all logits in memory.

While a model computes its loss, its output matrix returns :class:`_Pending` logits, a placeholder that
records what the model does to them (scale, cap, cast, shift, flatten). At the cross entropy the matrix is
called once, so that ZeRO-3's hooks gather it once, and processes the tokens in chunks. The gradients of a
chunk are computed with its loss, as in Liger (Hsu et al. 2024, section 3.2), and summed in fp32. Any other
use computes all logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy
from torch.utils import _pytree

from zerokit.memory.loss_chunks import chunk_tokens, saves_memory
from zerokit.training.examples import IGNORED
from zerokit.training.row_tiles import OfRows, RowTiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainingArguments

    from zerokit.recipe.model import TaskSection


def wants_chunked_loss(section: TaskSection, args: TrainingArguments, *, learns_tokens: bool) -> bool:
    """Whether to compute a run's loss in chunks if that saves memory.

    Not in fp16, where the gradients of an unscaled loss would underflow; not with Liger and torch.compile,
    which have their own kernels; not with label smoothing, which needs all logits; not for DPO with learned
    tokens, whose logits come before each sequence.
    """
    otherwise = {
        "causal_lm": (args.fp16, args.use_liger_kernel, args.torch_compile, args.label_smoothing_factor),
        "dpo": (args.use_liger_kernel, args.torch_compile, learns_tokens),
    }
    return section.type in otherwise and section.chunked_loss and not any(otherwise[section.type])


@dataclass
class _Request:
    """A request for values of logits other than the model's own loss."""

    labels: Tensor
    is_done: bool = False


_request: ContextVar[_Request | None] = ContextVar("sums of log-probabilities", default=None)


def row_sums(model: Any, inputs: Mapping[str, Tensor], labels: Tensor) -> Tensor:
    """The sum of the log probabilities of the labels in each row: (rows,). In chunks if that saves memory.

    Args:
        labels: (rows, tokens), -100 for tokens without a label.
    """
    request = _Request(labels)
    token = _request.set(request)
    try:
        logits = model(**inputs).logits
    finally:
        _request.reset(token)
    if request.is_done:
        return logits  # type: ignore[no-any-return]
    logits, labels = logits[:, :-1], labels[:, 1:]
    # By rows: the copy in float32 is of one sequence at a time.
    sums = [
        -cross_entropy(row[is_target].float(), label[is_target], reduction="sum")
        for row, label, is_target in zip(logits, labels, labels != IGNORED, strict=True)
    ]
    return torch.stack(sums)


def chunk_the_loss(model: PreTrainedModel, note: Callable[[str], object] | None = None) -> bool:
    """Make a model compute its loss in chunks if that saves memory; returns whether it can.

    Call it before DeepSpeed's engine is made. A model without a known output matrix does not change.

    Args:
        note: called once if a batch makes all logits although chunks would save memory.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    children = ((owner, *child) for owner in base.modules() for child in owner.named_children())
    owner, name = next(((owner, name) for owner, name, child in children if child is head), (None, ""))
    if owner is None or getattr(head, "out_features", None) is None:
        return False
    if any(True for part in head.children() for _ in part.parameters()):  # an adapter
        from deepspeed.utils import set_z3_leaf_module

        set_z3_leaf_module(head, True)  # gathered as one, for its parts are called for each chunk
    output = _Output(head, note)

    def begin(_: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        labels, request = kwargs.get("labels"), _request.get()
        if request is not None:
            labels = request.labels
        output.head = owner._modules[name] or head  # which AutoTP replaces when the engine is made
        if labels is not None and output.saves(labels.numel(), getattr(head, "in_features", 0)):
            vars(owner)[name] = output  # found before the module of that name, which stays where it is

    def end(_: Any, args: Any, result: Any) -> Any:
        vars(owner).pop(name, None)
        request = _request.get()
        return _pytree.tree_map_only(_Pending, lambda logits: logits.after_the_loss(request), result)

    base.register_forward_pre_hook(begin, with_kwargs=True)
    base.register_forward_hook(end, always_call=True)
    return True


class _Output:
    """Replaces an output matrix while a model is called."""

    def __init__(self, head: torch.nn.Module, note: Callable[[str], object] | None) -> None:
        self.head = head
        self.out_features = int(head.out_features)  # type: ignore[arg-type]
        self._note = note
        self._used: list[Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.head, name)

    def __call__(self, hidden: Tensor) -> _Pending:
        return _Pending.of(_Call(self, hidden))

    def saves(self, tokens: int, hidden: int) -> bool:
        """Whether chunks take less memory than all logits in the current pass."""
        vocabulary = self.out_features
        return saves_memory(tokens, vocabulary, hidden=hidden, trained=self.is_trained())

    def note_all(self) -> None:
        """Report, once, that all logits are made."""
        if self._note is not None:
            self._note(
                "zerokit: warning: the loss is not computed in chunks: the model asks for all its logits, "
                "which take more memory than was said"
            )
            self._note = None

    def is_trained(self) -> bool:
        """Whether the current pass needs gradients of the matrix."""
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.head.parameters())

    def loss(self, hidden: Tensor, labels: Tensor, of_logits: OfTokens, made: type[Sum] | type[RowTiles]) -> Tensor:
        """The losses of (tokens, h) hidden states, by one call of the matrix."""
        own = vars(self.head)
        usual, overridden = self.head.forward, own.get("forward")

        def forward(hidden: Tensor) -> Tensor:
            def of_rows(hidden: Tensor, rows: slice) -> Tensor:
                return of_logits(usual(hidden), labels[rows])

            used: list[Tensor] = []
            if torch.is_grad_enabled():
                if self._used is None:
                    self._used = list(leaves(of_rows(hidden[:1].detach(), slice(1))))
                used = self._used
            rows = chunk_tokens(self.out_features)
            loss: Tensor = made.apply(of_rows, rows, hidden, *used)  # type: ignore[no-untyped-call]
            return loss

        own["forward"] = forward
        try:
            loss: Tensor = self.head(hidden)
            return loss
        finally:
            del own["forward"]
            if overridden is not None:
                own["forward"] = overridden


class _Call:
    """One call of an output matrix."""

    def __init__(self, output: _Output, hidden: Tensor) -> None:
        self.output, self.hidden = output, hidden
        self.is_chunked = False

    @property
    def are_made(self) -> bool:
        """Whether the logits have been computed."""
        return "logits" in vars(self)

    @cached_property
    def logits(self) -> Tensor:
        """All of them."""
        width = self.hidden.shape[-1]
        if not self.is_chunked and self.output.saves(self.hidden.numel() // max(width, 1), width):
            self.output.note_all()
        made: Tensor = self.output.head(self.hidden)
        return made


class _Pending(Tensor):
    """Logits that are made if anything but their cross entropy is needed: a tensor without storage."""

    call: _Call
    rows: Tensor
    """Hidden states, (..., h), of the (..., V) logits."""
    each: tuple[Callable[[Tensor], Tensor], ...]
    """Functions applied to each logit."""
    before: tuple[_Pending, Callable[[Tensor], Tensor]] | None
    """The logits that these are made of, and the function; None if they are made."""
    logits: Tensor | None
    """The logits, once made: kept, since they may be changed in place."""

    @classmethod
    def of(cls, call: _Call) -> _Pending:
        """The logits of a call of the matrix."""
        shape = (*call.hidden.shape[:-1], call.output.out_features)
        like = torch.empty(shape, dtype=call.hidden.dtype, device="meta")
        return cls._make(like, call, call.hidden, (), None)

    @classmethod
    def _make(cls, like: Tensor, call: _Call, rows: Tensor, each: Any, before: Any) -> _Pending:
        made = like.as_subclass(cls)
        made.call, made.rows, made.each, made.before, made.logits = call, rows, each, before, None
        return made

    def made(self) -> Tensor:
        """The logits themselves."""
        if self.logits is None:
            if self.before is None:
                self.logits = self.call.logits
            else:
                before, do = self.before
                self.logits, self.before = do(before.made()), None
        return self.logits

    def after_the_loss(self, request: _Request | None) -> Tensor | None:
        """What the model returns as logits: None if its loss needed none, or the requested values."""
        if request is not None and self.ndim == 3 and self.shape[:2] == request.labels.shape:
            request.is_done = not self.call.are_made
        if request is not None and request.is_done:
            return self._row_sums(request.labels)
        return None if self.call.is_chunked else self.made()

    def _row_sums(self, labels: Tensor) -> Tensor:
        labels = labels[:, 1:]
        is_target = labels != IGNORED

        def of_logits(logits: Tensor, labels: Tensor) -> Tensor:
            for do in self.each:
                logits = do(logits)
            return cross_entropy(logits.float(), labels, reduction="none")

        self.call.is_chunked = True
        hidden = self.rows[:, :-1][is_target]
        losses = self.call.output.loss(hidden, labels[is_target], of_logits, RowTiles)
        sums = torch.zeros(len(labels), dtype=losses.dtype, device=losses.device)
        return sums.index_add(0, is_target.nonzero()[:, 0], -losses)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own, others = (args[0], (args[1:], kwargs)) if args else (None, ())
        tensors = [leaf for leaf in _pytree.tree_leaves(others) if isinstance(leaf, Tensor)]
        done = None
        if isinstance(own, _Pending):
            with torch._C.DisableTorchFunctionSubclass():
                if func is cross_entropy:
                    done = own._cross_entropy(*args[1:], **kwargs)
                elif not tensors:
                    done = own._then(func, *args[1:], **kwargs)
        if done is not None:
            return done
        args, kwargs = _pytree.tree_map_only(_Pending, lambda logits: logits.made(), (args, kwargs))
        return func(*args, **kwargs)

    def _then(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of a function; None if it needs the logits."""
        if func in _DESCRIBE:
            return func(self, *args, **kwargs)
        if func == Tensor.device.__get__:
            return self.rows.device
        name = func.__name__.removeprefix("__").removesuffix("__")  # not of mul_, which changes them in place
        if name not in (*_EACH, *_ROWS) or any(isinstance(argument, torch.device) for argument in args):
            return self if name == "to" and args == (self.rows.device,) and not kwargs else None

        def do(tensor: Tensor) -> Tensor:
            result: Tensor = func(tensor, *args, **kwargs)
            return result

        like = do(self.as_subclass(Tensor))
        if name in _EACH:
            rows, each = self.rows, (*self.each, do)
        elif like.shape[-1:] != self.shape[-1:]:
            return None
        elif name == "getitem":
            if not _keeps_last(args[0], self.ndim):
                return None
            rows, each = self.rows[args[0]], self.each
        else:
            rows, each = self.rows.reshape(*like.shape[:-1], self.rows.shape[-1]), self.each
        return self._make(like, self.call, rows, each, (self, do))

    def _cross_entropy(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The loss in chunks; None if that saves no memory or cannot be done."""
        if self.call.are_made:
            return None
        given = inspect.signature(cross_entropy).bind(self, *args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        labels, reduction, ignored = options["target"], options["reduction"], options["ignore_index"]
        others = (options["weight"], options["size_average"], options["reduce"])
        if self.ndim != 2 or labels.is_floating_point() or reduction not in ("mean", "sum") or any(others):
            return None
        if not self.call.output.saves(*self.rows.shape):
            return None

        def of_logits(logits: Tensor, labels: Tensor) -> Tensor:
            for do in self.each:
                logits = do(logits)
            smoothing = options["label_smoothing"]
            return cross_entropy(logits, labels, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)

        self.call.is_chunked = True
        loss = self.call.output.loss(self.rows, labels, of_logits, Sum)
        # Without labels the mean is 0, not NaN: its gradient is added to those of other micro batches.
        return loss if reduction == "sum" else loss / (labels != ignored).sum().clamp(min=1)


_DESCRIBE = (
    *(Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.ndim.__get__),  # type: ignore[attr-defined]
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
)
_EACH = ("float", "to", "contiguous", "mul", "rmul", "div", "truediv", "true_divide", "tanh")
_ROWS = ("view", "reshape", "flatten", "getitem")


def _keeps_last(index: Any, ndim: int) -> bool:
    """Whether an index leaves the last dimension unchanged, given that it keeps its length."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(type(part) in (int, slice) or part is Ellipsis for part in parts):
        return False
    is_ended = Ellipsis in parts and parts[-1] is not Ellipsis
    return parts[-1] == slice(None) or not (is_ended or len(parts) >= ndim)


OfTokens = Callable[[Tensor, Tensor], Tensor]
"""Logits (tokens, V) and labels (tokens,) -> the sum of the losses, or all losses (tokens,)."""


def leaves(result: Tensor) -> Iterator[Tensor]:
    """The parameters that a result depends on."""
    nodes, seen = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [before for before, _ in node.next_functions]


class Sum(torch.autograd.Function):
    """A sum of losses, and with it its gradients, in chunks of tokens."""

    @staticmethod
    def forward(ctx: Any, loss_of: OfRows, rows: int, hidden: Tensor, *used: Tensor) -> Tensor:
        """With `used`, the parameters that the loss depends on in addition to the hidden states."""
        is_wanted = ctx.needs_input_grad[2:]
        of_hidden = torch.empty_like(hidden) if is_wanted[0] else None
        of_used: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk = hidden[part].detach().requires_grad_(is_wanted[0])
            with torch.set_grad_enabled(any(is_wanted)):
                loss = loss_of(chunk, part)
            total += loss.detach()
            if not any(is_wanted):
                continue
            found = list(torch.autograd.grad(loss, [*([chunk] if is_wanted[0] else []), *used]))
            del loss
            if of_hidden is not None:
                of_hidden[part] = found.pop(0)
            if not of_used:
                of_used = [gradient.float() for gradient in found]
            else:
                for gradient, of_chunk in zip(of_used, found, strict=True):
                    gradient += of_chunk
        ctx.gradients = of_hidden, of_used
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, which are scaled in place: they serve once."""
        of_hidden, of_used = ctx.gradients
        del ctx.gradients
        if of_hidden is not None:
            of_hidden *= scale
        return None, None, of_hidden, *(gradient.mul_(scale) for gradient in of_used)

"""Models that the script makes in `deepspeed.zero.Init` itself, and those that it makes whole for ZeRO-3.

transformers then reads and initializes parameters that are partitioned already. It only makes models in
parts if it knows the ds_config by its HfDeepSpeedConfig.
"""

from __future__ import annotations

import traceback
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.call_sites import is_in
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.watching.watcher import Watcher

_LEAVE_INIT = Patch(
    "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses",
    "__exit__",
    "see what fails in zero.Init",
)
_KEEP = "keep transformers' HfDeepSpeedConfig(ds_config) alive, and call {}() without zero.Init"
_ADVICE = {
    "from_pretrained": "from_pretrained() does not work in deepspeed.zero.Init(), since it finds parameters "
    f"that are partitioned already: {_KEEP.format('from_pretrained')}",
    "init_weights": "Models of transformers cannot initialize parameters that deepspeed.zero.Init() has "
    f"partitioned already: {_KEEP.format('from_config')}",
}
"""By the function of transformers that fails."""
_IMPORT_FIRST = (
    "While deepspeed.zero.Init() replaces torch.Tensor.__new__, torch._dynamo cannot be imported for the "
    "first time: import the model's class, or torch._dynamo, before it"
)


class ZeroInit(Watcher):
    """Follows errors out of `zero.Init`, and models that are whole when ZeRO-3 gets them."""

    def __init__(self) -> None:
        self._of_model = 0
        self.whole_model_bytes = 0
        """Of parameters that no `zero.Init` had partitioned when a ZeRO-3 engine was made of them."""

    def on_engine_begin(self, model: Any) -> None:
        whole = (one for one in getattr(model, "parameters", list)() if not hasattr(one, "ds_id"))
        self._of_model = sum(one.numel() * one.element_size() for one in whole)

    def on_engine_end(self, engine: Any) -> None:
        if engine.zero_optimization_stage() == 3:
            self.whole_model_bytes += self._of_model

    def on_process_start(self) -> None:
        wrap(_LEAVE_INIT, self._leave)

    def _leave(self, leave: Any, init: Any, kind: Any, error: Any, trace: Any) -> Any:
        frames = [frame for frame, _ in traceback.walk_tb(trace)]
        # transformers enters zero.Init in the first of these frames, if it does so itself.
        inside = [frame.f_code for frame in frames[1:]]
        names = {code.co_name for code in inside if is_in(code.co_filename, "transformers/")}
        if frames and not is_in(frames[0].f_code.co_filename, "transformers/"):
            advice = next((words for name, words in _ADVICE.items() if name in names), None)
            if any(is_in(code.co_filename, "torch/_dynamo/") for code in inside):
                advice = f"{_IMPORT_FIRST}. {advice}" if advice else _IMPORT_FIRST
            elif not isinstance(error, IndexError | RuntimeError | ValueError | AssertionError):
                advice = None
            if advice:
                rank_context().state(_Failures).advice[id(error)] = error, advice
        return leave(init, kind, error, trace)


class _Failures:
    def __init__(self) -> None:
        self.advice: dict[int, tuple[BaseException, str]] = {}
        """By the number of an error, which is kept so that no other one gets its number."""


def advice_on_zero_init(error: BaseException) -> str | None:
    """What to do if `error` came of a model of transformers in `zero.Init`; else None."""
    return rank_context().state(_Failures).advice.get(id(error), (None, None))[1]

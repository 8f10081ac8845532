"""The rehearsal's worker for a rank with real values that really talks to the others.

Tensors hold what they would, in host memory. Every operator is computed on the CPU. The ranks are processes
that meet at MASTER_ADDR and MASTER_PORT. What is counted is the same as in a rehearsal.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from tests.rehearsal import forked_worker
from zerokit.rehearsal.stand_ins import registry
from zerokit.rehearsal.stand_ins.registry import RankSetup

STAND_INS = (
    *("cuda_graphs", "deepspeed_bookkeeping", "launcher_commands", "nvml", "spawned_ranks"),
    *("torch_internals", "triton_kernels"),
)
"""Those that a run with real values needs, too."""


def _install(environment: Mapping[str, str], setup: RankSetup) -> None:
    """In place of `registry.install_all`; imported late, as torch comes after the virtual device."""
    from tests.rehearsal import real_ops
    from tests.validation.rehearsal import gloo_process_group
    from zerokit.rehearsal.stand_ins import deepspeed_bookkeeping, op_builders
    from zerokit.rehearsal.stand_ins.async_io import locked_by

    os.environ.update({name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT")})
    del os.environ["ZEROKIT_REHEARSAL"]
    rank = setup.rank
    rank.backend._library.zk_configure_device(*setup.device.capability, 1)
    gloo_process_group.install(rank.traffic, rank.rank, rank.num_gpus)
    for one in registry.registered():
        if one.module.rpartition(".")[2] in STAND_INS and one is not deepspeed_bookkeeping.agree_with_rank_0:
            one(setup)
    modules = op_builders.op_modules(locked_by(rank.backend))
    real_ops.give_values(modules)
    op_builders.install_ops(modules)


def use_real_values() -> None:
    """Have the rehearsal of this process compute; before it begins."""
    registry.install_all = functools.partial(_install, dict(os.environ))


if __name__ == "__main__":
    if forked_worker.SOCKET in os.environ:
        forked_worker.ask(real=True)
    from zerokit.rehearsal.worker import run as worker

    use_real_values()
    worker.main()

"""Compiling DeepSpeed's extensions: a compiler that was killed does not stop later runs."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import launch

SCRIPT = """
from pathlib import Path
from zerokit.distributed.extensions import compile_extensions, own_folder
from zerokit.distributed.group import leave, run_on_all_ranks
from zerokit.distributed.libraries import set_up_libraries

def main(group):
    if group.ranks.is_main:
        left_behind = own_folder() / "deepspeed_shm_comm" / "lock"
        left_behind.parent.mkdir(parents=True)
        left_behind.touch()
    group.together(lambda: None)
    set_up_libraries(group.ranks)
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
    ShareMemCommBuilder.sources = lambda builder: [str(Path("module.cpp").absolute())]  # takes no minute
    compile_extensions(group, cpu_optimizer=False)
    from deepspeed.comm.torch import build_shm_op
    from torch.utils.file_baton import FileBaton
    FileBaton.try_acquire = None  # it is loaded already: no rank takes torch's lock outside of zerokit's
    assert build_shm_op() is not None

leave(run_on_all_ranks(main))
"""

MODULE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "deepspeed_shm_comm"};
PyMODINIT_FUNC PyInit_deepspeed_shm_comm() { return PyModule_Create(&definition); }
"""


def test_a_lock_left_by_a_killed_compiler_does_not_hang_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "module.cpp").write_text(MODULE)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TORCH_EXTENSIONS_DIR": ""}
    run = launch(["script.py"], ranks=2, cwd=tmp_path, env=cache)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("compiling DeepSpeed's deepspeed_shm_comm") == 1

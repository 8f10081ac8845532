"""Which failures of a script are zerokit's limits."""

from __future__ import annotations

import functools
import importlib
import operator
import platform
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pyarrow
import pytest
import torch
from torch._utils import ExceptionWrapper

from tests.rehearsal.questions import answer
from zerokit import patches
from zerokit.errors import ZerokitError
from zerokit.rehearsal.call_sites import CallSites
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.from_pretrained import _Slice
from zerokit.rehearsal.stand_ins.package_imports import _Finder
from zerokit.rehearsal.stand_ins.triton_kernels import _check_pointers
from zerokit.rehearsal.watching.watcher import Events
from zerokit.rehearsal.worker import failures
from zerokit.rehearsal.worker import run as worker
from zerokit.rehearsal.worker.failures import hint_for, limit_of


def _fails(call: Callable[[], object]) -> Exception | SystemExit:
    try:
        call()
    except (Exception, SystemExit) as error:
        return error
    raise AssertionError("nothing was raised")


def _fail(of: str, *, from_none: bool) -> None:
    if from_none:
        raise ValueError(of) from None
    raise ValueError(of)


def _done_without(missing: Exception, *, from_none: bool = False) -> None:
    """Fails of something else, while it does without what is missing."""
    try:
        raise missing
    except Exception:
        _fail("no such scheduler", from_none=from_none)


def _given_up(missing: Exception, *, from_none: bool = False) -> None:
    """Fails since it cannot do without what is missing."""
    try:
        raise missing
    except Exception:
        if from_none:
            raise ValueError("please install it") from None
        raise ValueError("please install it")  # noqa: B904 (as scripts do)


def _ended(missing: Exception) -> None:
    """Ends the script since it cannot do without what is missing."""
    try:
        raise missing
    except Exception as error:
        print(error)
        sys.exit(1)


def _fails_in_a_worker() -> None:
    """As torch's DataLoader raises again what a worker has failed of."""
    try:
        raise ImportError("TorchCodec is required\nfor this")
    except ImportError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    wrapped.reraise()


def _handled(cause: Exception) -> None:
    try:
        raise cause
    except Exception as error:
        raise RuntimeError("the fast path is gone") from error


LEFT_OUT = ("runs/last.pt", "runs/model")
"""A file and a folder that were not written."""


def _reads_back(name: str) -> None:
    Path(name).read_bytes()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: _reads_back("runs/last.pt"), "did not write runs/last.pt"),
        (lambda: _reads_back("runs/model/config.json"), "did not write runs/model"),
        (lambda: _reads_back("runs/data.json"), None),
        (lambda: _handled(OSError("no file named model.bin found in directory runs/model.")), "runs/model"),
        (lambda: _handled(ValueError("runs/model has 3 layers")), None),
        (lambda: _handled(OSError("libcudart.so.12: cannot open shared object file")), "libcudart.so.12"),
        (lambda: _handled(ImportError("libc10_cuda.so: cannot open")), "libc10_cuda.so"),
        (lambda: _handled(AssertionError("Torch not compiled with CUDA enabled")), "torch's CPU build"),
        (lambda: _handled(FileNotFoundError(2, "No such file", "rehearsed.safetensors")), "reads no weights"),
        (lambda: _handled(FileNotFoundError(2, "No such file", "nvidia-smi")), "runs nvidia-smi, which"),
        (
            lambda: _handled(AssertionError("Unsupported compute capability. Supported: 9.x, 10.x, 11.x, 12.x")),
            "FlashAttention 4 does not train on this card",
        ),
        (lambda: _handled(FileNotFoundError(2, "No such file", "train.json")), None),
        (lambda: _Slice((1,), None).get_strides(), "stand-in is not like what it stands for"),
        (lambda: _check_pointers({"x": torch.zeros(1)}), None),
        (
            lambda: _handled(OSError("cannot load library: libsndfile.so: cannot open shared object file")),
            "needs libsndfile.so, a library of the system",
        ),
        (
            lambda: _handled(RuntimeError("None loads:\nlibavutil.so.56: cannot open shared object file: no")),
            "needs libavutil.so.56, a library of the system",
        ),
        (lambda: _handled(URLError(OSError(-2, "Name or service not known"))), "asks the network"),
        (lambda: _handled(FileNotFoundError("outgoing traffic has been disabled")), "has not fetched"),
        (lambda: _handled(ConnectionError("Offline mode is enabled.")), "has not fetched"),
        (lambda: _handled(ConnectionRefusedError(111, "Connection refused")), None),
        (lambda: _handled(KeyError("best")), None),
        (lambda: {}["libcudart"], None),
        (lambda: _done_without(ImportError("libcudart.so.12: cannot open")), None),
        (lambda: _done_without(ImportError("libcudart.so.12: cannot open"), from_none=True), None),
        (lambda: _given_up(ImportError("libcudart.so.12: cannot open")), "libcudart.so.12"),
        (lambda: _given_up(ModuleNotFoundError("No module named 'x'"), from_none=True), "not installed"),
        (lambda: _given_up(KeyError("best")), None),
        (lambda: _ended(ModuleNotFoundError("No module named 'x'")), "not installed"),
        (lambda: _ended(KeyError("best")), None),
        (_fails_in_a_worker, "does not have (ImportError: TorchCodec is required)"),
        (lambda: _done_without(RehearsalGap("aten::bincount"), from_none=True), "aten::bincount"),
    ],
)
def test_a_failure_that_a_stand_in_takes_part_in_is_a_limit(call: Callable[[], Any], said: str | None) -> None:
    limit = limit_of(_fails(call), LEFT_OUT)
    if said is None:
        assert limit is None
        return
    assert limit is not None
    assert said in str(limit)
    assert "test_failures.py" in str(limit)


def test_what_fails_in_c_where_a_watcher_calls_the_original_is_the_scripts() -> None:
    class Engine:
        make: Any = operator.attrgetter("module")

    watched = functools.partial(Events()._make_engine, Engine.make)
    assert "stand-in is not like" in str(limit_of(_fails(lambda: watched(1))))
    patches.replace(Engine, "make", lambda _original: watched)
    assert limit_of(_fails(lambda: watched(1))) is None


def test_a_module_that_a_stand_in_lacks_is_a_limit_and_one_that_is_missing_is_not_installed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder({"flash_attn"})])
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    for name in ("flash_attn.ops.triton.linear", "flash_attn.no_such"):
        limit = limit_of(_fails(functools.partial(importlib.import_module, name)))
        assert name in str(limit)
        assert "stands in for flash-attn" in str(limit)
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        monkeypatch.delitem(sys.modules, name)
    python, of_torch = platform.python_version(), version("torch")
    for imports, what in (
        ("import no_such.layers", "is not installed in this environment (ModuleNotFoundError: "),
        ("import email.no_such", f"imports what Python {python} does not have (ModuleNotFoundError: "),
        ("from email import no_such", f"imports what Python {python} does not have (ImportError: "),
        ("raise ImportError('x needs y 2')", "needs what this environment does not have (ImportError: "),
        ("import torch.no_such", f"imports what torch {of_torch} does not have (ModuleNotFoundError: "),
        ("from torch import no_such", f"imports what torch {of_torch} does not have (ImportError: "),
        ("import tests.no_such", None),
        ("from tests import no_such", None),
    ):
        limit = limit_of(_fails(functools.partial(exec, imports)))
        assert limit is None if what is None else what in str(limit)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ZerokitError | None]]:
    """Has files be installed packages, and tells what is said of an import."""
    before = set(sys.modules)
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    monkeypatch.syspath_prepend(tmp_path)

    def says(importing: str, **files: str) -> ZerokitError | None:
        for name, text in files.items():
            folder = tmp_path if name.startswith("own_") else packages
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return limit_of(_fails(functools.partial(exec, importing, {"__name__": "__main__"})))

    yield says
    for name in set(sys.modules) - before:
        del sys.modules[name]


_LAZY = "def load():\n    try: {}\n    except Exception as error: raise {}('Could not import Model'){}"
"""A module that imports where a name is used; with what it imports, raises, and names as the reason."""
_NO_OPERATOR = "def fails(): raise RuntimeError('operator visions::nms does not exist')\nfails()"
"""As torchvision says beside a torch that it was not built for."""


@pytest.mark.parametrize(
    ("importing", "files"),
    [
        ("import visions", {"visions": _NO_OPERATOR}),
        ("import trainers", {"trainers": "import visions", "visions": _NO_OPERATOR}),
        (
            "import lazy; lazy.load()",
            {
                "lazy": "def load():\n    try: import visions\n"
                "    except RuntimeError as error: raise ModuleNotFoundError('Could not import') from error",
                "visions": _NO_OPERATOR,
            },
        ),
        ("import visions", {"visions": "import torch\ntorch.no_such_name"}),
        (
            "import outer; outer.load()",
            {
                "outer": _LAZY.format("import middle; middle.load()", "ImportError", " from error"),
                "middle": _LAZY.format("import inner; inner.load()", "RuntimeError", ""),
                "inner": _LAZY.format("import visions", "ModuleNotFoundError", " from error"),
                "visions": _NO_OPERATOR,
            },
        ),
        (
            "import trainers",
            {
                "trainers": "import lazy; lazy.load()",
                "lazy": _LAZY.format("import visions", "RuntimeError", " from error"),
                "visions": _NO_OPERATOR,
            },
        ),
        (
            "from lazy import Model",
            {
                "lazy": "def __getattr__(name):\n    try: import visions\n"
                "    except RuntimeError as error: raise AttributeError(name) from error",
                "visions": _NO_OPERATOR,
            },
        ),
    ],
)
def test_an_installed_module_that_fails_while_it_is_imported_is_named(
    importing: str, files: dict[str, str], installed: Callable[..., ZerokitError | None]
) -> None:
    limit = installed(importing, **files)
    assert limit is not None
    assert "the installed module visions fails here while it is imported (" in str(limit)
    assert "If python -c 'import visions' shows the same" in (limit.hint or "")


@pytest.mark.parametrize("from_error", ["", " from error"])
@pytest.mark.parametrize("kinds", [("ModuleNotFoundError",), ("ImportError", "RuntimeError", "ImportError")])
def test_a_package_that_is_missing_behind_others_is_named(
    kinds: tuple[str, ...], from_error: str, installed: Callable[..., ZerokitError | None]
) -> None:
    files = {
        f"lazy{place}": _LAZY.format(f"import lazy{place + 1}; lazy{place + 1}.load()", kind, from_error)
        for place, kind in enumerate(kinds)
    }
    files[f"lazy{len(kinds)}"] = "def load(): import no_such_package"
    limit = installed("import lazy0; lazy0.load()", **files)
    assert "is not installed in this environment (ModuleNotFoundError: No module named 'no_such_" in str(limit)


@pytest.mark.parametrize(
    ("importing", "files"),
    [
        (
            "import lazy; lazy.load()",
            {
                "lazy": _LAZY.format("import own_plugin", "ImportError", " from error"),
                "own_plugin": "raise RuntimeError('of my own')",
            },
        ),
        ("import visions; visions.load()", {"visions": "def load(): raise RuntimeError('no boxes')"}),
        ("import plugins", {"plugins": "import own_plugin", "own_plugin": "raise RuntimeError('of my own')"}),
        ("import project", {"project": "open('no/such/file')"}),
        ("import project", {"project": "import os; os.environ['NO_SUCH_NAME']"}),
        ("import visions", {"visions": "import own_queue\nown_queue.Queue", "own_queue": ""}),
        ("import visions", {"visions": "raise SystemExit(2)"}),
    ],
)
def test_what_fails_otherwise_is_the_scripts(
    importing: str, files: dict[str, str], installed: Callable[..., ZerokitError | None]
) -> None:
    assert installed(importing, **files) is None


def test_what_compiled_code_raises_is_the_scripts_whatever_language_its_file_is_in(tmp_path: Path) -> None:
    for raise_it in (
        lambda: pyarrow.array([1, "two"]),  # frames of Cython, which name pyarrow/array.pxi
        lambda: pyarrow.table({"a": [1], "b": [1, 2]}),
    ):
        failure = _fails(raise_it)
        assert limit_of(failure) is None
        assert not hasattr(failure, "__notes__")
    file = tmp_path / "error.pxi"
    file.write_text("cdef int check(object status) except -1 nogil:\n    return int(status)\n")
    names: dict[str, Any] = {}
    exec(compile("def check(status):\n    return int(status)\n", str(file), "exec"), names)
    failure = _fails(lambda: names["check"]("no"))
    assert limit_of(failure) is None
    assert not hasattr(failure, "__notes__")


def test_what_cannot_be_explained_stays_the_failure_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: object) -> None:
        raise RuntimeError("of the explanation")

    monkeypatch.setattr(failures, "_cause", explain)
    failure = _fails(lambda: {}["best"])
    assert limit_of(failure) is None
    assert "(RuntimeError: of the explanation): please report it" in failure.__notes__[0]


def test_why_a_script_failed_is_printed_though_its_results_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(worker, "_run_script", lambda _: {}["best"])
    monkeypatch.setattr(worker, "_save_recording", fail)
    rank: Any = SimpleNamespace(
        steps=SimpleNamespace(stopped=False),
        suppressed=SimpleNamespace(left_out={}),
        exchange=SimpleNamespace(substituted=0),
        end=lambda _: None,
    )
    job: Any = None
    with pytest.raises(OSError, match="disk full"):
        worker.run_in(rank, job)
    assert "KeyError: 'best'" in capsys.readouterr().err


def _cached(repo_id: str) -> None:
    raise FileNotFoundError(f"outgoing traffic has been disabled, asked for {len(repo_id)} letters")


def test_what_the_hub_was_asked_for_is_named_and_the_line_of_the_script() -> None:
    names: dict[str, Any] = {"ask": _cached}
    library = "/usr/lib/python3/site-packages/models/load.py"
    exec(compile("def load(name):\n    ask(name)", library, "exec"), names)

    def load() -> None:
        try:
            names["load"]("google/siglip")
        except OSError as error:
            raise OSError("could not be loaded") from error

    limit = str(limit_of(_fails(load)))
    assert "asks the Hub for google/siglip, which this machine has not fetched" in limit
    assert "(hf download google/siglip)" in limit


def test_the_hint_for_no_sync_asks_for_nothing_that_is_done() -> None:
    """The engine accumulates already where accelerate or the script enters no_sync()."""
    words = "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2"
    hint = hint_for(AssertionError(words)) or ""
    assert hint.startswith("Remove no_sync(): the engine itself accumulates")
    assert hint.endswith("upgrade accelerate")


def test_what_the_compiler_finds_in_place_of_torchs_own_is_not_the_scripts_failure() -> None:
    own = "zerokit.rehearsal.stand_ins.virtual_process_group.VirtualProcessGroup"
    limit = limit_of(RuntimeError(f"UnsafeScriptObjectError\n  context: value=<{own} object at 0x7f>, attr=_run"))
    assert limit is not None
    assert f"torch.compile cannot trace {own}, which the rehearsal has" in str(limit)


NOT_FETCHED = "zerokit-tests/not-fetched"


def hub_failures(_rank: Any) -> dict[str, str]:
    """What is said of each way to load a repository that is not in the cache, or lacks files there."""
    import datasets
    import huggingface_hub
    import peft
    import tokenizers
    import transformers

    with tempfile.TemporaryDirectory() as cache:
        partly = Path(cache, "models--zerokit-tests--partly")
        commit = "0" * 40
        (partly / "snapshots" / commit).mkdir(parents=True)
        (partly / "refs").mkdir()
        (partly / "refs" / "main").write_text(commit)
        (partly / "snapshots" / commit / "config.json").write_text('{"model_type": "gpt2"}')
        of_partly = {"pretrained_model_name_or_path": "zerokit-tests/partly", "cache_dir": cache}
        model = transformers.AutoModelForCausalLM
        ways: dict[str, Callable[[], object]] = {
            "config": lambda: transformers.AutoConfig.from_pretrained(NOT_FETCHED),
            "folder": lambda: transformers.AutoConfig.from_pretrained("no_such_folder"),
            "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(NOT_FETCHED),
            "extractor": lambda: transformers.WhisperFeatureExtractor.from_pretrained(NOT_FETCHED),
            "image": lambda: transformers.ViTImageProcessor.from_pretrained(NOT_FETCHED),
            "generation": lambda: transformers.GenerationConfig.from_pretrained(NOT_FETCHED),
            "adapter": lambda: peft.PeftConfig.from_pretrained(NOT_FETCHED),
            "rust": lambda: tokenizers.Tokenizer.from_pretrained(NOT_FETCHED),
            "snapshot": lambda: huggingface_hub.snapshot_download(NOT_FETCHED, repo_type="dataset"),
            "dataset": lambda: datasets.load_dataset(NOT_FETCHED),
            "image of a part": lambda: transformers.ViTImageProcessor.from_pretrained(**of_partly),
            "wrong value": lambda: model.from_pretrained(**of_partly, attn_implementation="no_such"),
            "own": lambda: {}[NOT_FETCHED],
        }
        found = {way: str(limit_of(_fails(call))) for way, call in ways.items()}
        transformers.GPT2TokenizerFast.from_pretrained(NOT_FETCHED)  # which is one without a vocabulary
        return found | {"hint": hint_for(None) or ""}


def test_a_repository_that_is_not_here_is_named_with_its_file_however_it_is_loaded() -> None:
    found = answer(hub_failures, environment=(("HF_HUB_OFFLINE", "1"),))
    assert "If no_such_folder is meant to be a folder, there is none of that name here. Fetch it" in found.pop(
        "folder"
    )
    assert "folder" not in found["config"]
    download = f"(hf download {NOT_FETCHED})"
    for way, file in (
        *(("config", "config.json"), ("tokenizer", ""), ("extractor", "preprocessor_config.json")),
        *(("image", "preprocessor_config.json"), ("generation", "generation_config.json")),
        *(("adapter", "adapter_config.json"), ("rust", "tokenizer.json")),
    ):
        said = found.pop(way)
        asked = f"asks the Hub for {file}"
        assert f"{asked} of {NOT_FETCHED}, which this machine has not fetched" in said or not file, way
        assert download in said
    assert f"(hf download --repo-type dataset {NOT_FETCHED})" in found.pop("snapshot")
    assert f"{NOT_FETCHED}, which this machine has not fetched" in found["dataset"]
    assert "(datasets.load_dataset)" in found.pop("dataset")
    assert "preprocessor_config.json of zerokit-tests/partly, which" in found.pop("image of a part")
    hint = found.pop("hint")
    assert f"fetch them: hf download {NOT_FETCHED}; " in hint
    assert "partly" not in hint
    assert found == {"wrong value": "None", "own": "None"}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/usr/lib/python3/site-packages/models/load.py", r"models/load\.py:2 \(called from .*test_failures\.py:"),
        ("/home/me/torch/zerokit/train.py", r"/home/me/torch/zerokit/train\.py:2$"),  # the user's own
    ],
)
def test_the_line_of_a_library_is_told_with_that_of_the_script(path: str, where: str) -> None:
    names: dict[str, Any] = {"find": CallSites().find}
    source = "def load():\n    raise OSError('libcudart.so.12: cannot open')\nsite = find()"
    exec(compile(source, path, "exec"), names)
    limit = limit_of(_fails(names["load"]))
    assert limit is not None
    assert re.match(where, limit.where or "")
    assert names["site"] == 0


def test_a_call_that_a_replacement_alone_refuses_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "REGISTERED", [])
    monkeypatch.setattr(textwrap, "indent", textwrap.indent)
    patches.wrap(patches.Patch("textwrap", "indent", "take less"), lambda indent, text: indent(text, ""))
    for named, is_limit in (({"prefix": ""}, True), ({"unknown": ""}, False)):
        with pytest.raises(TypeError) as raised:
            textwrap.indent("text", **named)
        limit = limit_of(raised.value)
        assert ("stand-in is not like what it stands for" in str(limit)) == is_limit

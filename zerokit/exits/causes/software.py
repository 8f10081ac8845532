"""Software that was compiled for something else, cannot be compiled, or is missing."""

from __future__ import annotations

from zerokit.exits.causes.entry import Cause, Weight, cause

SOFTWARE: tuple[Cause, ...] = (
    cause(
        "extension",
        "an extension cannot be compiled: {what}",
        "Fix the compiler's error: a missing header means a missing -dev package; CUDA_HOME and c++ "
        "must fit torch: see zerokit doctor",
        r"fatal error: [^\n]{1,200}",
        r"ERROR: No supported gcc/g\+\+ host compiler found",
        r"nvcc fatal {1,4}: [^\n]{1,160}",
        r"The detected CUDA version \([\d.]{1,9}\) mismatches",
        r"error: #error [^\n]{1,160}",
        r"Unable to JIT load the \w{1,40} op due to ninja not being installed",
        r"unsupported GNU version![^\n]{0,100}",
        r"cannot find -l[\w.-]{1,40}",
        r"Ninja is required to load C\+\+ extensions",
        r"CUDA_HOME does not exist",
        r"No such file or directory: '(?:c\+\+|g\+\+|gcc|clang\+\+)'",
        r"Command '\['which', '[^'\n]{0,100}(?:\+\+|cc|clang)[\d.-]{0,9}'\]' returned non-zero",
        r"Command '\['[^'\n]{1,200}', '--version'\]' returned non-zero",
        r"CUDA_HOME environment variable is not set",
        r"Installed CUDA version [\d.]+ does not match [^\n]{0,60}, unable to compile",
    ),
    cause(
        "extension",
        "an extension could not be compiled: {what}",
        "See the compiler's first error above; 'zerokit doctor' checks what it needs",
        r"Error building extension '\w{1,60}'",
    ),
    cause(
        "extension",
        "an extension could not be compiled or loaded: {what}",
        "See the error of its optimizer above; 'zerokit doctor' checks what it needs",
        r"object has no attribute 'ds_opt_\w{1,20}'",  # in the destructor of what was not made
        weight=Weight.CONSEQUENCE,
    ),
    cause(
        "op-incompatible",
        "DeepSpeed's op {op} is not compatible with this machine",
        "'zerokit doctor' shows what is missing; async_io (NVMe offload) needs libaio with its "
        "headers: apt install libaio-dev",
        r"Unable to JIT load the (?P<op>\w{1,40}) op due to it not being compatible",
    ),
    cause(
        "extension",
        "an extension was compiled only in part, such as when its compiler was killed: {what}",
        "Remove the folder of extensions (TORCH_EXTENSIONS_DIR, else ~/.cache/torch_extensions) and "
        "start again",
        r"torch_extensions/[^\s:]{1,300}/(?P<what>\w{1,60}\.so): cannot open shared object file",
    ),
    cause(
        "other-binary",
        "a package was compiled for another torch than the installed one: {what}",
        "Reinstall it for this torch: pip install --force-reinstall --no-cache-dir "
        "--no-build-isolation PACKAGE (such as flash-attn); or install the torch for which it was "
        "built",
        r"\.so: undefined symbol: (?P<what>\S{1,200})",
        r"DeepSpeed ops were compiled and installed (?P<what>[^\n]{0,100})",
    ),
    cause(
        "library-missing",
        "a shared library is missing: {what}",
        "Install its package, or add its folder to LD_LIBRARY_PATH. If it belongs to another CUDA "
        "(libcudart.so.11), the package was built for that: reinstall it",
        r"ImportError: (?P<what>lib[\w.+-]{1,80}\.so[\d.]{0,20}): cannot open shared object file",
        r"OSError: (?P<what>lib[\w.+-]{1,80}\.so[\d.]{0,20}): cannot open shared object file",
        r"version `?(?P<what>(?:GLIBCXX|GLIBC|CXXABI)_[\d.]{1,12})' not found",
    ),
    cause(
        "flash-attention",
        "FlashAttention cannot be used: {what}",
        "Install flash-attn for this torch, or set attn_implementation: sdpa; it needs a GPU from Ampere "
        "on, and fp16 or bf16",
        r"FlashAttention\d? has been toggled on, but it cannot be used due to the following error: "
        r"(?P<what>[^\n]{1,160})",
        r"FlashAttention only supports? [^\n]{1,80}",
    ),
)

"""DeepCompile."""

from collections.abc import Iterator, Mapping

from zerokit.config.sections import Compile
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, autotp_size

_SECTION = ("compile",)


def _section(subject: Subject) -> Compile | None:
    """The section as far as the file has one."""
    return subject.config.compile if isinstance(subject.written_value(*_SECTION), Mapping) else None


@rule("compile-off")
def compile_off(subject: Subject) -> Iterator[Hit]:
    """DeepCompile options although DeepCompile is off"""
    section = _section(subject)
    paths = [path for path in subject.unused if path[0] == "compile"]
    if section is not None and not section.deepcompile and paths:
        first, reason = paths[0], subject.unused[paths[0]].reason
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        message = f"'{first[-1]}'{more} {reason if not more else reason.replace('acts', 'act')}"
        yield Hit(first, message, 'Add "deepcompile": true, or remove what does nothing')


@rule("compile-combination")
def compile_combination(subject: Subject) -> Iterator[Hit]:
    """DeepCompile options that exclude each other"""
    section = _section(subject)
    if section is None:
        return
    if section.deepcompile and subject.stage == 3 and not {"autosp", "autotp"} & set(section.passes or []):
        yield from _two_offloads(subject, section)
    passes = set(section.passes or [])
    if section.deepcompile and "autotp" in passes and len(passes) > 1:
        others = ", ".join(sorted(passes - {"autotp"}))
        message = f'the pass "autotp" cannot be combined with {others}'
        yield Hit((*_SECTION, "passes"), message, "Keep one of them")
    if section.autoep_non_moe:
        reasons = {
            "'deepcompile'": section.deepcompile,
            "ZeRO stage 3": subject.stage == 3,
            "offload": subject.offload_optimizer is not None or subject.offload_param is not None,
            "tensor parallelism": autotp_size(subject) > 1,
        }
        for reason in [name for name, present in reasons.items() if present]:
            message = f"'autoep_non_moe' does not go with {reason}"
            yield Hit((*_SECTION, "autoep_non_moe"), message, "Remove one of the two")


def _two_offloads(subject: Subject, section: Compile) -> Iterator[Hit]:
    optimizer, param = subject.offload_optimizer, subject.offload_param
    cpu = [side is not None and side.device == "cpu" for side in (optimizer, param)]
    parameters = section.offload_parameters or all(cpu)
    named = "'offload_parameters'" if section.offload_parameters else "offload of everything to the CPU"
    pairs = (
        ("offload_opt_states", subject.offloads_optimizer, "'offload_optimizer'"),
        ("offload_activation", section.offload_opt_states, "'offload_opt_states'"),
        ("offload_activation", parameters, named),
        ("offload_opt_states", parameters, named),
    )
    for key, is_other_set, other in pairs:
        if getattr(section, key) and is_other_set:
            yield Hit((*_SECTION, key), f"'{key}' does not go with {other}", "Remove one of the two")
            return

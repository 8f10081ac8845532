"""The functions of `native/api.cpp`, as ctypes has to know them."""

from __future__ import annotations

import ctypes
from typing import Any

FINDER = ctypes.CFUNCTYPE(ctypes.c_int32)
"""Finds the index of the calling line."""


def declare(library: ctypes.CDLL) -> None:
    """Say what the functions of native/api.cpp take and give."""
    pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "zk_configure_device": (None, [integer, integer, integer]),
        "zk_configure_allocator": (None, [integer, long, long, long, long]),
        "zk_use_device": (integer, [integer]),
        "zk_set_devices": (None, [integer, integer]),
        "zk_set_multiprocessors": (None, [integer]),
        "zk_set_cudnn_version": (None, [long]),
        "zk_take_over": (ctypes.c_char_p, []),
        "zk_set_site_finder": (None, [FINDER]),
        "zk_set_phase": (None, [integer]),
        "zk_phase": (integer, []),
        "zk_set_step": (None, [integer]),
        "zk_set_counting": (None, [integer]),
        "zk_set_page_locking": (None, [integer]),
        "zk_current_stream": (integer, []),
        "zk_set_current_stream": (None, [integer]),
        "zk_never_fill": (None, [pointer]),
        "zk_make_up": (None, [pointer]),
        "zk_block_at": (long, [pointer, ctypes.POINTER(pointer)]),
        "zk_make_up_at": (None, [pointer]),
        "zk_is_made_up": (integer, [pointer]),
        "zk_label": (None, [pointer, integer, integer]),
        "zk_resize_storage": (None, [pointer, long]),
        "zk_current": (long, [integer]),
        "zk_peak": (long, [integer]),
        "zk_reset_peak": (None, [integer]),
        "zk_synchronize": (None, []),
        "zk_empty_cache": (None, []),
        "zk_begin_pool": (None, [long]),
        "zk_end_pool": (None, []),
        "zk_release_pool": (None, [long]),
        "zk_stat": (long, [integer, integer]),
        "zk_event_count": (long, []),
        "zk_copy_events": (None, [pointer, long]),
        "zk_block_count": (long, []),
        "zk_copy_blocks": (None, [pointer, long]),
        "zk_operator_names": (ctypes.c_char_p, []),
        "zk_notes": (ctypes.c_char_p, []),
        "zk_random_elements_skipped": (long, []),
        "zk_flops": (ctypes.c_double, []),
        "zk_count_flops": (None, [ctypes.c_double]),
        "zk_new_generator": (pointer, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments

"""How the C library keeps memory that Python has given back.

What leaves by TLS is read, encrypted and sent in buffers of some hundred kilobytes, which are freed at once.
By default glibc gives such memory back to the system as soon as it lies free at the end of the heap, and gets
it again for the next buffer: every page of it is then zeroed and mapped anew. That was half of the time that
a broker needed to send records by TLS.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
"""The numbers of these settings in glibc's malloc.h."""

OF_ITS_OWN_MIN_BYTES: Final = 4 * 1024 * 1024
"""Larger blocks are mapped by themselves, and leave when they are freed."""
KEPT_MAX_BYTES: Final = 8 * 1024 * 1024
"""What may lie free at the end of the heap."""

_OF_THE_USER: Final = ("MALLOC_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep some megabytes for the next buffers. Returns whether the C library takes such settings; those of
    the environment come first."""
    if any(name.startswith(_OF_THE_USER) for name in os.environ):
        return False
    mallopt = _find_mallopt()
    if mallopt is None:
        return False
    # Each of them ends glibc's own search for a threshold, so both are needed.
    return (
        mallopt(_MMAP_THRESHOLD, OF_ITS_OWN_MIN_BYTES) == 1 and mallopt(_TRIM_THRESHOLD, KEPT_MAX_BYTES) == 1
    )


def _find_mallopt() -> Callable[[int, int], int] | None:
    """glibc's; other libraries know other numbers, if they have the function."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - whether it is there
        found: Callable[[int, int], int] = library.mallopt
    except (OSError, AttributeError):
        return None
    return found

"""Keeps memory that a process frees, where it would be given back to the system only to be asked for again.

A training step frees and allocates the same large blocks each time. By default glibc maps each anew and trims its heap,
and the kernel then has to fill every page with zeros at its first use.
"""

import ctypes
import platform
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h names them
_NEVER = 2**30  # bytes; larger blocks are mapped all the same


def keep_freed_memory() -> bool:
    """Has this process keep what it frees, until it ends; returns whether its allocator can do that (glibc's)."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))

# SPDX-License-Identifier: Apache-2.0
"""The C library: loading it, its errors, its enumerations, and what must not cross a fork."""

import atexit
import os
import pathlib
from collections.abc import Callable
from functools import cache
from typing import Any

from moxie._c import ffi

FOLDER = pathlib.Path(__file__).parent

# Never unloaded: a driver has threads and hooks that outlive its last caller.
lib: Any = ffi.dlopen(str(FOLDER / "libmoxie.so"), ffi.RTLD_NOW | ffi.RTLD_NODELETE)

_VALUE_ERRORS = (lib.MOXIE_ERROR_INVALID_ARGUMENT, lib.MOXIE_ERROR_UNSUPPORTED)


def text(value: Any) -> str:
    """A C string."""
    return ffi.string(value).decode() if value else ""


def check(status: int) -> None:
    """Raises what a status other than MOXIE_OK stands for, with the library's sentence.

    ValueError: an argument breaks a rule, or the device has no kernel for it. MemoryError: device or host memory.
    RuntimeError: everything else, such as a driver or a compiler that is missing.
    """
    if status == 0:
        return
    sentence = text(lib.moxie_last_error())
    if status in _VALUE_ERRORS:
        raise ValueError(sentence)
    if status == lib.MOXIE_ERROR_OUT_OF_MEMORY:
        raise MemoryError(sentence)
    raise RuntimeError(sentence)


@cache
def _parsed(kind: str, name: str) -> int:
    if "\0" in name:
        raise ValueError(f"{kind} is {name!r}, and no name has a null character")  # where C would end it
    value = ffi.new("int32_t*")
    parse = getattr(lib, f"moxie_{kind}_parse")
    # The program `moxie` writes hyphens, Python underscores.
    if parse(name.replace("_", "-").encode(), value):
        try:
            check(parse(name.encode(), value))
        except ValueError as error:
            raise ValueError(str(error).replace("text", kind, 1)) from None
    return value[0]


def enum_value(kind: str, name: str) -> int:
    """The value of an enumeration's name: enum_value("gate_layout", "split_up_first")."""
    if not isinstance(name, str):
        raise TypeError(f"{kind} is the name of a value, and {name!r} is no str")
    return _parsed(kind, name)


@cache
def enum_name(kind: str, value: int) -> str:
    """The name of a value as Python writes it: enum_name("gate_layout", 2) is "split_up_first"."""
    return text(getattr(lib, f"moxie_{kind}_name")(value)).replace("-", "_")


# A driver's threads and contexts do not survive a fork. Importing before one is fine; a device that was opened is not.
opened = False
forked = False
_ending = False  # the process is; it takes everything with it


def _after_fork() -> None:
    global forked
    forked = forked or opened


def _at_exit() -> None:
    global _ending
    _ending = True


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def refuse_after_fork() -> None:
    if forked:
        raise RuntimeError(
            "this process was forked after moxie had opened a device; open devices in the child alone, or start "
            "processes by multiprocessing's 'spawn'"
        )


def owned(handle: Any, release: Callable[[Any], None]) -> Any:
    """The handle, released when nothing refers to it any more, but neither by a forked child nor when Python ends."""
    return ffi.gc(handle, lambda h: None if forked or _ending else release(h))


def words(struct: Any) -> Any:
    """The structure as an array of 64-bit words: pointers are set there as integers, without a cast each."""
    return ffi.cast("uintptr_t*", struct)


def word_of(struct: str, *path: str) -> int:
    """Which of these words a member is: word_of("moxie_gemm_tensors", "a", "data")."""
    return ffi.offsetof(struct, *path) // 8

# SPDX-License-Identifier: Apache-2.0
"""GPUs, and the simulator in their place."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from moxie import _library
from moxie._library import check, enum_value, ffi, lib, owned, refuse_after_fork, text


@dataclass(frozen=True)
class DeviceInfo:
    """What the driver says of a device."""

    name: str
    driver_path: str  #: the libcuda that serves it
    arch: int  #: 90: sm_90a, 100: sm_100a, others: not supported
    sm_count: int
    shared_bytes: int  #: the most shared memory that a block may opt in to
    driver_version: int  #: 13000: CUDA 13.0
    simulated: bool
    memory_bytes: int
    l2_bytes: int
    memory_rate: float  #: bytes a second from device memory, by its clock and the width of its bus
    clock: float  #: the most that the multiprocessors' clock reaches, cycles a second


def _info(get: Any, *of: Any) -> DeviceInfo:
    info = ffi.new("moxie_device_info*", {"size": ffi.sizeof("moxie_device_info")})
    check(get(*of, info))
    members: dict[str, Any] = {name: getattr(info, name) for name in DeviceInfo.__dataclass_fields__}
    members.update(name=text(info.name), driver_path=text(info.driver_path), simulated=bool(info.simulated))
    return DeviceInfo(**members)


def devices() -> list[DeviceInfo]:
    """Every device of the driver, supported or not, and the simulator. A missing driver is no error."""
    refuse_after_fork()
    handle = ffi.new("moxie_device_list**")
    _library.opened = True
    check(lib.moxie_device_list_create(handle))
    found = owned(handle[0], lib.moxie_device_list_release)
    count = ffi.new("size_t*")
    check(lib.moxie_device_list_count(found, count))
    return [_info(lib.moxie_device_list_get, found, index) for index in range(count[0])]


def require_device(device: Any) -> None:
    if not isinstance(device, Device):
        raise TypeError(f"device is a moxie.Device, and {device!r} is none")


class Memory:
    """Device memory of its own, freed with the object. `ptr` is its address, aligned to 256 bytes; 0 for no bytes."""

    def __init__(self, device: Device, nbytes: int) -> None:
        pointer = ffi.new("void**")
        check(lib.moxie_device_allocate(device.handle, nbytes, pointer))
        self.device = device
        self.nbytes = nbytes
        self.ptr = int(ffi.cast("uintptr_t", pointer[0]))
        free, handle = lib.moxie_device_free, device.handle
        self._owned = owned(pointer[0], lambda p: free(handle, p)) if self.ptr else None

    def free(self) -> None:
        """Frees it now."""
        if self._owned is not None:
            pointer, self._owned, self.ptr, self.nbytes = self._owned, None, 0, 0
            ffi.gc(pointer, None)
            check(lib.moxie_device_free(self.device.handle, pointer))


class Device:
    """A GPU, or the simulator in its place.

    kind: "cuda" for a GPU, "sim" for the simulator, or "auto" for what the environment variable MOXIE_DEVICE names
    and else a GPU that the library supports, else the simulator. There is one object for each kind and ordinal.
    RuntimeError: no libcuda, or no such device.
    """

    info: DeviceInfo  #: what the driver said when the device was opened
    handle: Any  #: moxie_device*
    ordinal: int

    _lock = threading.Lock()
    _opened: dict[tuple[int, int], Device] = {}

    def __new__(cls, kind: str = "auto", ordinal: int = 0) -> Device:
        refuse_after_fork()
        value = enum_value("device_kind", kind)
        with cls._lock:
            device = cls._opened.get((value, ordinal))
            if device is not None:
                return device
            handle = ffi.new("moxie_device**")
            _library.opened = True
            check(lib.moxie_device_open(value, ordinal, handle))
            self = object.__new__(cls)
            self.handle = owned(handle[0], lib.moxie_device_release)
            self.info = _info(lib.moxie_device_get_info, self.handle)
            self.ordinal = ordinal
            # "auto" is asked again each time: the environment may change.
            actual = lib.MOXIE_DEVICE_KIND_SIM if self.info.simulated else lib.MOXIE_DEVICE_KIND_CUDA
            return cls._opened.setdefault((actual, ordinal), self)

    def __repr__(self) -> str:
        return f"moxie.Device({'sim' if self.info.simulated else 'cuda'!r}, {self.ordinal}): {self.info.name}"

    def synchronize(self, stream: int = 0) -> None:
        """Waits for all work on the stream. RuntimeError: a kernel before it went wrong."""
        refuse_after_fork()
        check(lib.moxie_device_synchronize(self.handle, ffi.cast("moxie_stream", stream)))

    def allocate(self, nbytes: int) -> Memory:
        """Device memory, freed with the object. MemoryError: there is not so much."""
        refuse_after_fork()
        return Memory(self, nbytes)

    def upload(self, to_device: int, from_host: Any, stream: int = 0) -> None:
        """Copies all bytes of a contiguous buffer (bytes, a numpy array...) to an address in device memory."""
        refuse_after_fork()
        source = ffi.from_buffer(from_host)
        check(
            lib.moxie_device_upload(
                self.handle, ffi.cast("void*", to_device), source, len(source), ffi.cast("moxie_stream", stream)
            )
        )

    def download(self, to_host: Any, from_device: int, stream: int = 0) -> None:
        """Fills a contiguous, writable buffer from an address in device memory."""
        refuse_after_fork()
        target = ffi.from_buffer(to_host, require_writable=True)
        check(
            lib.moxie_device_download(
                self.handle, target, ffi.cast("void*", from_device), len(target), ffi.cast("moxie_stream", stream)
            )
        )

    def fill(self, at: int, value: int, nbytes: int, stream: int = 0) -> None:
        """Sets every byte to `value`."""
        refuse_after_fork()
        check(
            lib.moxie_device_fill(
                self.handle, ffi.cast("void*", at), value, nbytes, ffi.cast("moxie_stream", stream)
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""The ranks of a process group of torch: what they agree on, how they exchange rows, and who has failed."""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from moxie._device import Device

# Seconds between signs of life, where no time limit asks for shorter ones.
_BEAT = 1.0
# A process that gives no sign of life for so many seconds has ended or hangs. Code that keeps the interpreter's lock
# for long must not look like that.
_SILENCE = 15.0
# Of a device, for plans.
_FIGURES = ("arch", "sm_count", "shared_bytes", "l2_bytes", "memory_rate", "clock")


class Watch:
    """Signs of life of a group's ranks in the group's store, by a thread of its own, and the first failure of any.

    A rank that finds a failure writes it into the store, where the first one stays. So all ranks name the same one.
    After a failure the group is used no more.
    """

    _of: dict[Any, Watch] = {}

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        store = distributed_c10d._get_process_group_store(group)
        # A client of its own: a caller that waits for a key holds its client until the key is there.
        store = store.clone() if hasattr(store, "clone") else store
        self.store = dist.PrefixStore("moxie", store)
        self._pace(timeout)
        self.step = 0
        self.objects = 0
        self.failure: str | None = None
        self.exchanges: dict[torch.device, Exchange] = {}
        self._devices: dict[str, list[dict[str, Any]]] = {}
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._steps: dict[int, int] = {}
        self._ended = threading.Event()
        self._write_beat(0)
        self._thread = threading.Thread(target=self._run, name="moxie ranks", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @classmethod
    def of(cls, group: dist.ProcessGroup, timeout: float) -> Watch:
        """The one of a group that all its objects share. Collective in the sense that all ranks ask in one order."""
        found = cls._of.get(group)
        if found is None or found._ended.is_set():
            found = cls._of[group] = cls(group, timeout)
        if timeout < found.timeout:
            found._pace(timeout)
        return found

    def _pace(self, timeout: float) -> None:
        """How often signs of life are given, for the shortest time limit of a group's objects."""
        self.timeout = timeout
        # A store serves so many ranks no faster.
        self.beat = max(min(_BEAT, timeout / 8), self.size / 128)
        self.silence = max(5 * self.beat, min(_SILENCE, timeout / 2))
        self.store.set_timeout(timedelta(seconds=max(timeout, 10 * self.beat)))

    def close(self) -> None:
        """Ends the thread. Nobody may wait for this rank any more."""
        if not self._ended.is_set():
            self._ended.set()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=2)
            Watch._of.pop(self.group, None)
            atexit.unregister(self.close)

    def name(self, rank: int) -> str:
        """A rank of the group for a sentence."""
        everywhere = dist.get_global_rank(self.group, rank)
        return f"rank {rank}" if rank == everywhere else f"rank {rank} of the group (global rank {everywhere})"

    # ---- What the thread does ----

    def _write_beat(self, count: int) -> None:
        self.store.set(f"beat/{self.rank}", f"{count} {self.step}")

    def _run(self) -> None:
        count = 0
        groups = distributed_c10d._world.pg_map
        others = [rank for rank in range(self.size) if rank != self.rank]
        present: set[int] = set()
        unreachable: float | None = None
        while not self._ended.wait(self.beat):
            if self.group not in groups:
                Watch._of.pop(self.group, None)
                return
            count += 1
            try:
                self._write_beat(count)
                if self.store.check(["failed"]):
                    self.fail_locally(self.store.get("failed").decode())
                # Ranks whose watch has not begun are late and not silent.
                present |= {rank for rank in others if rank not in present and self.store.check([f"beat/{rank}"])}
                ranks = sorted(present)
                beats = self.store.multi_get([f"beat/{rank}" for rank in ranks]) if ranks else []
                unreachable = None
            except Exception as error:
                if self._ended.is_set():
                    return
                unreachable = unreachable or time.monotonic()
                if time.monotonic() - unreachable > 2 * self.beat:
                    self.fail_locally(self._store_is_gone(error))
                    return
                continue
            now = time.monotonic()
            for rank, value in zip(ranks, beats, strict=True):
                if self._seen.get(rank, (b"", 0.0))[0] != value:
                    self._seen[rank] = value, now
                    self._steps[rank] = int(value.split()[1])
            for rank in ranks:
                if now - self._seen[rank][1] > self.silence:
                    self.fail(self._silent(rank))

    def _store_is_gone(self, error: Exception) -> str:
        sentence = str(error).splitlines()[0][:120]
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return f"the process group's store, which torchrun's agent holds, does not answer ({sentence})"
        return f"rank 0 of all, which holds the process group's store, has ended or hangs ({sentence})"

    # ---- Failures ----

    def _silent(self, rank: int) -> str:
        return f"{self.name(rank)} has ended or hangs: its last sign of life was in step {self._steps[rank]}"

    def fail_locally(self, sentence: str) -> None:
        if self.failure is None:
            self.failure = sentence
            for exchange in self.exchanges.values():
                exchange.abort()

    def fail(self, sentence: str) -> None:
        """Writes the failure into the store, where an earlier one stays, and takes what stands there."""
        try:
            sentence = self.store.compare_set("failed", "", sentence).decode()
        except Exception as error:
            sentence = f"{sentence}; the process group's store does not answer ({str(error).splitlines()[0][:120]})"
        self.fail_locally(sentence)

    def check(self, cause: BaseException | None = None) -> None:
        """RuntimeError: a rank of the group has failed."""
        if self.failure is not None:
            raise RuntimeError(f"{self.failure}; the process group takes no further calls of moxie") from cause

    def wait(self, done: Callable[[], bool], limit: float, what: str) -> None:
        """Returns when done() is true. RuntimeError, which names the rank: that took more than `limit` seconds, or a
        rank has failed meanwhile."""
        begin = time.monotonic()
        polls = 0
        while True:
            try:
                if done():
                    return
            except Exception as error:
                self.blame(begin + limit, what, error)
            self.check()
            if time.monotonic() - begin > limit:
                self.blame(begin + limit, what, None)
            polls += 1
            # What takes microseconds is not slept through.
            time.sleep(0 if polls < 200 else min(1e-3, 2e-5 * (polls - 199)))

    def blame(self, deadline: float, what: str, error: Exception | None) -> None:
        """Finds the rank at fault and raises. error: what the transport said; None: time is over."""
        while self.failure is None:
            # A connection ends with its process, whose signs of life end as well.
            now = time.monotonic()
            silent = {r: at for r, (_, at) in list(self._seen.items()) if now - at > 3 * self.beat}
            if silent:
                rank = min(silent, key=lambda r: silent[r])
                self.fail(self._silent(rank))
            if error is None or now > deadline:
                break
            time.sleep(self.beat / 4)
        if self.failure is None:
            steps = dict(self._steps)
            late = [r for r in range(self.size) if r != self.rank and steps.get(r, 0) < self.step]
            if late:
                rank = min(late, key=lambda r: (steps.get(r, 0), r))
                self.fail(
                    f"{self.name(rank)} is late: it is in step {steps.get(rank, 0)}, and {self.name(self.rank)} waits "
                    f"for {what} of step {self.step}"
                )
            else:
                sentence = "no rank seems to be late" if error is None else str(error).splitlines()[0][:200]
                self.fail(f"{self.name(self.rank)} did not get {what} of step {self.step}: {sentence}")
        self.check(error)

    def synchronize(self, device: torch.device, limit: float, what: str) -> None:
        """Waits for all that is in the current stream of a GPU."""
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self.wait(event.query, limit, what)

    def devices(self, device: torch.device, limit: float) -> list[dict[str, Any]]:
        """Each rank's host and the figures that its products are planned with. RuntimeError: as gather."""
        found = self._devices.get(device.type)
        if found is None:
            info = (Device("cuda", device.index) if device.type == "cuda" else Device("sim")).info
            figures = {name: getattr(info, name) or None for name in _FIGURES}
            own = {"host": host(), "figures": figures}
            found = self._devices[device.type] = self.gather(f"devices/{device.type}", own, limit)
        return found

    # ---- What all ranks must agree on ----

    def agree(self, key: str, description: Mapping[str, Any], limit: float) -> None:
        """ValueError on all ranks: one says something else than rank 0, or what it refuses. RuntimeError: as gather."""
        said = self.gather(key, description, limit)
        for rank, theirs in enumerate(said):
            if theirs.get("refused"):
                raise ValueError(f"{self.name(rank)} refuses its arguments: {theirs['refused']}")
        for rank, theirs in enumerate(said):
            _compare(self.name(rank), theirs, said[0])

    def gather(self, key: str, value: Mapping[str, Any], limit: float) -> list[dict[str, Any]]:
        """What each rank says under a key. RuntimeError: one has said nothing within `limit` seconds."""
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        missing = set(range(self.size))

        def complete() -> bool:
            for rank in sorted(missing):
                if not self.store.check([f"{key}/{rank}"]):
                    return False
                missing.discard(rank)
            return True

        begin = time.monotonic()
        pause = 1e-3
        while not complete():
            self.check()
            if time.monotonic() - begin > limit:
                late = next(r for r in sorted(missing) if not self.store.check([f"{key}/{r}"]))
                self.fail(f"{self.name(late)} is late: it has not come to the construction of the others' object")
                self.check()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return [json.loads(said) for said in self.store.multi_get([f"{key}/{r}" for r in range(self.size)])]


def _compare(who: str, theirs: Any, first: Any) -> None:
    for field in {**first, **theirs}:
        mine, other = first.get(field), theirs.get(field)
        if mine == other:
            continue
        if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
            at = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
            field, mine, other = f"{field}[{at}]", mine[at], other[at]
        raise ValueError(f"{who} has {field} {other!r}, but rank 0 has {mine!r}; it must be the same on all ranks")


class Exchange:
    """Uneven all-to-all of bytes over a group's own backend, with a time limit.

    A backend without all_to_all_single (that of the group's device) is used by isend and irecv instead.
    """

    def __init__(self, watch: Watch, device: torch.device) -> None:
        self.watch, self.device = watch, device
        self.group, self.size = watch.group, watch.size
        try:
            self.backend = self.group._get_backend(device)
        except RuntimeError:
            raise ValueError(
                f"tensors are on {device.type}, but the process group has no backend for it: name one at "
                'init_process_group, such as "cpu:gloo,cuda:nccl"'
            ) from None
        self.has_all_to_all = True
        self._is_connected = device.type != "cuda"

    @classmethod
    def of(cls, watch: Watch, device: torch.device) -> Exchange:
        """The one of a group and a device."""
        found = watch.exchanges.get(device)
        return found if found is not None else watch.exchanges.setdefault(device, cls(watch, device))

    def abort(self) -> None:
        """Ends kernels that wait for a rank, which otherwise would do so for ever, and this process with them."""
        if self.device.type == "cuda" and hasattr(self.backend, "abort"):
            self.backend.abort()

    def start(
        self, out: Tensor, given: Tensor, out_rows: Sequence[int], given_rows: Sequence[int], limit: float, what: str
    ) -> _Transfer:
        """Rows of `given`, the first given_rows[0] to rank 0 and so on, to rows of `out`.

        limit: seconds to wait for them. what: they are, in a sentence.
        """
        if not self._is_connected:
            self._connect(limit, what)
        try:
            works = self._all_to_all(out, given, list(out_rows), list(given_rows))
        except RuntimeError as error:
            self.watch.blame(time.monotonic() + limit, what, error)
        return _Transfer(self, out, given, works, limit, what)

    def _connect(self, limit: float, what: str) -> None:
        """Has the backend find the other ranks. NCCL does so in a group's first call, where it waits for them without a
        limit, so a thread makes that call."""
        stream = torch.cuda.current_stream(self.device)
        failures: list[RuntimeError] = []

        def call() -> None:
            try:
                with torch.cuda.device(self.device), torch.cuda.stream(stream):
                    given = torch.zeros(self.size, dtype=torch.uint8, device=self.device)
                    dist.all_to_all_single(torch.empty_like(given), given, group=self.group)
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=call, name="moxie connects", daemon=True)
        thread.start()
        self.watch.wait(lambda: not thread.is_alive(), limit, what)
        for error in failures:
            if not _is_missing(error):
                self.watch.blame(time.monotonic() + limit, what, error)
        self._is_connected = True

    def _all_to_all(self, out: Tensor, given: Tensor, out_rows: list[int], given_rows: list[int]) -> list[Any]:
        if self.has_all_to_all:
            try:
                return [dist.all_to_all_single(out, given, out_rows, given_rows, group=self.group, async_op=True)]
            except (NotImplementedError, RuntimeError) as error:
                if not _is_missing(error):
                    raise
                self.has_all_to_all = False
        operations: list[Any] = []
        own = self.watch.rank
        received, sent = out.split(out_rows), given.split(given_rows)
        for rank in range(self.size):
            if rank == own:
                received[own].copy_(sent[own])
                continue
            peer = dist.get_global_rank(self.group, rank)
            if received[rank].shape[0]:
                operations.append(dist.P2POp(dist.irecv, received[rank], peer, self.group))
            if sent[rank].shape[0]:
                operations.append(dist.P2POp(dist.isend, sent[rank], peer, self.group))
        # All at once: NCCL's stream would have one wait for the other, on both ranks.
        works = dist.batch_isend_irecv(operations) if operations else []
        return works if self.device.type == "cuda" else [_Waiting(works)]

    def to_host(self, tensor: Tensor, limit: float, what: str) -> list[Any]:
        """The values, as soon as the current stream has them."""
        if self.device.type == "cuda":
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            self.watch.synchronize(self.device, limit, what)
            tensor = host
        return tensor.tolist()


class _Waiting:
    """A thread that waits for works which don't say themselves whether they are completed."""

    def __init__(self, works: Sequence[Any]) -> None:
        self.works = works
        self.error: RuntimeError | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            self.error = error

    def is_completed(self) -> bool:
        return not self.thread.is_alive()

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


class _Transfer:
    """An exchange under way, and its tensors."""

    def __init__(
        self, exchange: Exchange, out: Tensor, given: Tensor, works: Sequence[Any], limit: float, what: str
    ) -> None:
        self.exchange, self.out, self.given, self.works = exchange, out, given, works
        self.limit, self.what = limit, what

    def finish(self) -> Tensor:
        """What was received; on a GPU for what comes next in the current stream."""
        watch = self.exchange.watch
        for work in self.works:
            if self.exchange.device.type != "cuda":
                watch.wait(work.is_completed, self.limit, self.what)
            try:
                work.wait()
            except RuntimeError as error:
                watch.blame(time.monotonic() + self.limit, self.what, error)
        return self.out


class Windows:
    """This rank's window and where it reaches those of the others: memory that torch's symmetric memory has mapped.

    All layers of a group whose windows have the same bytes use the same ones, since ranks call them in one order.
    """

    _of: dict[tuple[Any, torch.device, int], Windows] = {}
    _opened = 0  # by torch's symmetric memory in this process

    def __init__(self, watch: Watch, device: torch.device, nbytes: int) -> None:
        self.status: Tensor | None = None
        if device.type == "cuda":
            self.status = torch.zeros(8, dtype=torch.int32, pin_memory=True)
        self.addresses: list[int] = []
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        if watch.size == 1:
            self.memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
            self.addresses = [self.memory.data_ptr()]
            return
        from torch.distributed import _symmetric_memory as symmetric

        Windows._opened += 1
        self.memory = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        self.handle = symmetric.rendezvous(self.memory, watch.group)
        starts = list(self.handle.buffer_ptrs)
        offset = self.memory.data_ptr() - starts[watch.rank]
        self.addresses = [start + offset for start in starts]

    @staticmethod
    def missing(watch: Watch, device: torch.device) -> str | None:
        """Why this rank can have none."""
        if watch.size == 1:
            return None
        if device.type != "cuda":
            return f"its tensors are on {device.type}"
        try:
            import torch.distributed._symmetric_memory  # noqa: F401
        except ImportError:
            return "its torch has no symmetric memory"
        return None

    @classmethod
    def of(
        cls, watch: Watch, device: torch.device, nbytes: int, key: str, prepare: Callable[[Tensor], None], limit: float
    ) -> Windows:
        """Those of a group, a device and a size. All ranks ask in one order. RuntimeError: one cannot have them."""
        place = watch.group, device, nbytes
        found = cls._of.get(place)
        failure = None
        if found is None:
            # A rendezvous finds the other ranks by its number in the process, and waits for ever where these differ.
            opened = [said["opened"] for said in watch.gather(f"{key}/opened", {"opened": cls._opened}, limit)]
            for rank, number in enumerate(opened):
                if watch.size > 1 and number != opened[0]:
                    raise RuntimeError(
                        f"{watch.name(rank)} has opened {number} windows before and rank 0 {opened[0]}, but torch's "
                        "symmetric memory wants as many on all ranks"
                    )
            try:
                found = cls(watch, device, nbytes)
                prepare(found.memory)
            except RuntimeError as error:
                failure = str(error).splitlines()[0][:200]
        # Nobody calls before all windows are prepared.
        for rank, said in enumerate(watch.gather(f"{key}/prepared", {"failure": failure}, limit)):
            if said["failure"] is not None:
                raise RuntimeError(f"{watch.name(rank)} has no window: {said['failure']}")
        assert found is not None
        return cls._of.setdefault(place, found)

    def beside(self, compute: Callable[[], Tensor]) -> Callable[[], Callable[[], Tensor]]:
        """What begins to compute a tensor on another stream, from what the current one has come to now. That returns
        what has the current stream wait for the tensor, and gives it."""
        side = self._side
        if side is None:

            def begin_here() -> Callable[[], Tensor]:
                tensor = compute()
                return lambda: tensor

            return begin_here
        current = torch.cuda.current_stream(side.device)
        side.wait_stream(current)

        def begin() -> Callable[[], Tensor]:
            with torch.cuda.stream(side):
                tensor = compute()

            def join() -> Tensor:
                current.wait_stream(side)
                # Its memory is the other stream's, which must not have it back while this one reads it.
                tensor.record_stream(current)
                return tensor

            return join

        return begin

    def note(self) -> None:
        """Has the window's status copied to the host behind the work of the current stream. Not by a graph, each of
        whose replays the copy would keep waiting for some ten microseconds."""
        if self.status is not None and not torch.cuda.is_current_stream_capturing():
            self.status.copy_(self.memory[:32].view(torch.int32), non_blocking=True)

    def failed(self) -> bool:
        """Whether the last status that has come says so."""
        status = self.memory[:32].view(torch.int32) if self.status is None else self.status
        return int(status[0]) != 0


def host() -> str:
    """What only processes of one machine have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return socket.gethostname()


def _is_missing(error: Exception) -> bool:
    text = str(error).lower()
    return any(each in text for each in ("not support", "not implement", "unsupported", "no backend type"))

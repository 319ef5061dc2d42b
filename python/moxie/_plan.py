# SPDX-License-Identifier: Apache-2.0
"""Plans as data: which kernel a product gets, why, and what else there was to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moxie._describe import TUNING_ENUMS, Dense, Groups, arguments, describe
from moxie._library import check, enum_name, enum_value, ffi, lib, text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from moxie._describe import Words

_ROWS_SOURCES = {
    lib.MOXIE_ROWS_SOURCE_GIVEN: "given",
    lib.MOXIE_ROWS_SOURCE_EXPECTED: "expected",
    lib.MOXIE_ROWS_SOURCE_ASSUMED: "assumed",
}


@dataclass(frozen=True)
class PlanCandidate:
    """One kernel that could compute the product."""

    kernel: str
    reason: str  #: what limits it, in a few words
    cycles: float  #: predicted time of a launch; 0 where it is not possible
    possible: bool  #: False: it does not fit the device
    tuning: dict[str, Any]  #: as `hopper` or `blackwell` of a product it leads to this kernel


@dataclass(frozen=True)
class Plan:
    """The kernel that was chosen, with what it is made of and what it was chosen from."""

    kernel: str  #: such as "cooperative 128x256x64, 4 stages, cluster 2 (B multicast)"
    source: str  #: what decided: "model", "tuned table" or "caller's choice"
    arch: int  #: whose tuning the plan has: 90 or 100
    stages: int  #: depth of the operand ring
    decode_tile: bool  #: the kernel is of the kind for groups of few rows (sm_90a)
    store_buffers: int  #: staging buffers of each output
    shared_bytes: int  #: shared memory of a block
    tensor_columns: int  #: columns of tensor memory (sm_100a)
    panel_columns: int  #: cluster tiles that are walked together along N
    tiles: int  #: of a launch when the rows are known, else the most that there can be
    mean_rows: float  #: of a group, as the plan reckoned
    rows_source: str  #: where mean_rows came from: "given", "expected" or "assumed"
    flops: float  #: 2 M N K over all groups, for those rows
    predicted_seconds: float  #: of a launch
    clock: float  #: cycles a second of PlanCandidate.cycles
    tuning: dict[str, Any]  #: as `hopper` or `blackwell` of a product it leads to this kernel again
    candidates: list[PlanCandidate]  #: best first, the chosen one at the front


@dataclass(frozen=True)
class RankCosts:
    """What a step of one rank costs, where experts are chosen evenly: seconds, and bytes that it sends to others."""

    dispatch_bytes: float
    combine_bytes: float
    dispatch: float
    combine: float
    up: float  #: the first product
    down: float  #: the second
    around: float  #: sort, permute and sum on the rank itself
    sum: float  #: of the five above
    in_halves: float  #: the sum in two halves, one on its way while the other is multiplied; 0: one token has none

    @property
    def halves_pay(self) -> bool:
        return 0 < self.in_halves < self.sum


def _tuning(plan: Any, arch: int, candidate: int) -> dict[str, Any]:
    name = "hopper" if arch == 90 else "blackwell"
    tuning = arguments(f"moxie_{name}_tuning")
    check(getattr(lib, f"moxie_plan_get_{name}_tuning")(plan, candidate, tuning))
    found: dict[str, Any] = {}
    for member, _ in ffi.typeof(tuning).item.fields:
        if member in ("size", "reserved") or member.startswith("has_"):
            continue
        value = getattr(tuning, member)
        if not getattr(tuning, f"has_{member}", value):
            continue
        found[member] = enum_name(TUNING_ENUMS[member], value) if member in TUNING_ENUMS else value
    return found


def plan_of(handle: Any) -> Plan:
    """What a moxie_plan* holds, which is then released."""
    plan = ffi.gc(handle, lib.moxie_plan_release)
    info = arguments("moxie_plan_info")
    check(lib.moxie_plan_get_info(plan, info))
    candidates = []
    for index in range(info.candidate_count):
        seen = arguments("moxie_plan_candidate")
        check(lib.moxie_plan_get_candidate(plan, index, seen))
        candidates.append(
            PlanCandidate(
                text(seen.kernel), text(seen.reason), seen.cycles, bool(seen.possible), _tuning(plan, info.arch, index)
            )
        )
    members: dict[str, Any] = {name: getattr(info, name, None) for name in Plan.__dataclass_fields__}
    members.update(
        kernel=text(info.kernel),
        source=text(lib.moxie_plan_source_name(info.source)),
        decode_tile=bool(info.decode_tile),
        rows_source=_ROWS_SOURCES[info.rows_source],
        tuning=_tuning(plan, info.arch, lib.MOXIE_CHOSEN),
        candidates=candidates,
    )
    return Plan(**members)


def plan(
    groups: Groups,
    *,
    total: int | None = None,
    arch: int = 90,
    sm_count: int | None = None,
    shared_bytes: int | None = None,
    l2_bytes: int | None = None,
    memory_rate: float | None = None,
    clock: float | None = None,
    **description: Unpack[Words],
) -> Plan:
    """The plan of a product for a device that need not be here. Compiles nothing.

    description: as GroupedGemm's. total: rows of the call that is planned for. arch: 90 (sm_90a) or 100 (sm_100a); the
    other figures are the device's, where None stands for an H200's. ValueError: a rule is broken.
    """
    figures = _figures(arch, sm_count, shared_bytes, l2_bytes, memory_rate, clock)
    handle = ffi.new("moxie_plan**")
    described = describe(groups, **description)
    check(lib.moxie_plan_create(described.pointer, figures, lib.MOXIE_NO_TOTAL if total is None else total, handle))
    return plan_of(handle[0])


def _figures(*values: float | None) -> Any:
    names = ("arch", "sm_count", "shared_bytes", "l2_bytes", "memory_rate", "clock")
    return arguments("moxie_device_figures", **dict(zip(names, values, strict=True)))


def rank_costs(
    *,
    tokens: int,
    experts: int,
    ranks: int,
    top_k: int,
    windows: bool = False,
    row_format: str = "bf16",
    domain: int | None = None,
    network: float | None = None,
    arch: int = 90,
    sm_count: int | None = None,
    shared_bytes: int | None = None,
    l2_bytes: int | None = None,
    memory_rate: float | None = None,
    clock: float | None = None,
    **up: Unpack[Words],
) -> RankCosts:
    """What `moxie plan --ranks` prints of a layer whose experts are divided among ranks. No device is needed.

    tokens: of a rank. experts: of all ranks. windows: by kernels that reach peers' memory, in which tokens travel in
    row_format; else by all_to_all. domain: ranks that NVLink connects; None: 8, on sm_100a 72, or ranks if fewer.
    network: bytes a second of a rank's network adapter; None: 50e9. up: the first product, as GroupedGemm's words. The
    figures of the device are those of `plan`. ValueError: a rule is broken.
    """
    described = describe(Dense(1), **up)
    layer = arguments(
        "moxie_ranked_layer",
        up=described.pointer,
        tokens=tokens,
        experts=experts,
        ranks=ranks,
        top_k=top_k,
        windows=windows,
        domain=domain,
        network=network,
        format=enum_value("row_format", row_format),
    )
    costs = arguments("moxie_rank_costs")
    check(lib.moxie_rank_costs_of(layer, _figures(arch, sm_count, shared_bytes, l2_bytes, memory_rate, clock), costs))
    return RankCosts(**{name: getattr(costs, name) for name in RankCosts.__dataclass_fields__})

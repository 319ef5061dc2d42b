# SPDX-License-Identifier: Apache-2.0
"""Descriptions: from Python's words to the structures of the interface in C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

from moxie._library import enum_value, ffi


@dataclass(frozen=True)
class Dense:
    """One product. a [m, K], b [N, K], outputs [m, W]."""

    grouping: ClassVar[str] = "dense"
    m: int


@dataclass(frozen=True)
class Batched:
    """`count` products of the same size. a [G, m, K], b [G, N, K], outputs [G, m, W]."""

    grouping: ClassVar[str] = "batched"
    count: int
    m: int


@dataclass(frozen=True)
class Offsets:
    """Rows sorted by group. a [T, K], b [G, N, K], outputs [T, W].

    A call's `ends` [G] int32 holds the end of each group's rows; the first group begins at row 0. Groups may be empty
    and need no alignment; rows past the last end are left untouched.
    total: T, when all calls have about as many rows. Then one kernel is planned and compiled, else one for every range
    of rows. A call may have any number of rows in both cases.
    """

    grouping: ClassVar[str] = "offsets"
    count: int
    total: int | None = None


@dataclass(frozen=True)
class RowGroups:
    """Every row names its group. a [T, K], b [G, N, K], outputs [T, W].

    A call's `group_of_row` [T] int32 holds the group of each row, or -1. Groups begin at multiples of
    GroupedGemm.row_alignment. Rows marked -1 that share a tile with valid rows may be overwritten.
    """

    grouping: ClassVar[str] = "row_groups"
    count: int


@dataclass(frozen=True)
class Masked:
    """Room for max_m rows in each group. a [G, max_m, K], b [G, N, K], outputs [G, max_m, W].

    A call's `counts` [G] int32 holds the number of valid rows of each group; rows past them are left untouched.
    """

    grouping: ClassVar[str] = "masked"
    count: int
    max_m: int


@dataclass(frozen=True)
class Pointers:
    """Each group has pointers, leading dimensions and sizes of its own (GroupedGemm.run_pointers).

    max_m, and the description's n and k, are the most that any group has.
    """

    grouping: ClassVar[str] = "pointers"
    count: int
    max_m: int


@dataclass(frozen=True)
class KGroups:
    """K is divided, not the rows (sm_100a): out[g] = a[:, group g] b[:, group g]^T. a [m, K], b [N, K], outputs
    [G, m, W]. A call's `ends` [G] int32 holds the end of each group along K, a multiple of 8 (bf16) or 32.
    """

    grouping: ClassVar[str] = "k_groups"
    count: int
    m: int


Groups = Union[Dense, Batched, Offsets, RowGroups, Masked, Pointers, KGroups]

# What the comments of moxie_activation_spec in moxie/c.h say.
_PARAMETERS = {
    "swiglu_oai": ("alpha", "limit"),
    "swiglu_clamped": ("gate_limit", "up_limit"),
    "situ": ("beta", "linear_beta"),
}


def activation_members(name: str, parameters: Mapping[str, float] | None) -> dict[str, Any]:
    """Members of a moxie_activation_spec."""
    members: dict[str, Any] = {"function": enum_value("activation", name)}
    if parameters is not None:
        wanted = _PARAMETERS.get(name.replace("-", "_"), ())
        if set(parameters) != set(wanted):
            allowed = " and ".join(wanted) or "none"
            raise ValueError(f"activation_parameters: {name} has {allowed}, and {', '.join(parameters)} were given")
        members.update(parameters, has_parameters=1)
    return members


class Description:
    """A structure of the interface in C, filled by members' names, with what it points to."""

    def __init__(self, struct: str, members: Mapping[str, Any]) -> None:
        self._kept: list[Any] = []
        self.pointer = self.fill(struct, members)

    def fill(self, struct: str, members: Mapping[str, Any]) -> Any:
        filled = ffi.new(f"{struct}*")
        filled.size = ffi.sizeof(struct)
        for name, value in members.items():
            if value is not None:
                setattr(filled, name, value)
        self._kept.append(filled)
        return filled

    def keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def groups_members(groups: Groups) -> dict[str, Any]:
    """Members of a moxie_groups."""
    if not isinstance(groups, Groups.__args__):
        names = ", ".join(each.__name__ for each in Groups.__args__)
        raise TypeError(f"groups is one of {names}, and {groups!r} is none of them")
    members: dict[str, Any] = {"grouping": enum_value("grouping", groups.grouping)}
    for name, value in vars(groups).items():
        if value is not None:
            members[name] = value
            if name == "total":
                members["has_total"] = 1
    return members

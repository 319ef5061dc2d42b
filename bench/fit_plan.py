#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the plan's cost model for Hopper to measured times, and says what choosing by it costs. The
model is the library's own, in libmoxie_plan_costs.so. Needs numpy and scipy.

    moxie tune --sample 150 --seed 17 --exhaustive --times drawn.json         # on a GPU, and the same of lists
    python3 bench/fit_plan.py --report                                        # regret of the constants as they are
    python3 bench/fit_plan.py --out src/plan/hopper_costs.inc                 # fit them anew

The regret of a choice is its time over that of the best candidate, less 1. The plan does not know the routing, so it
takes one kernel for balanced, scattered and skewed groups, and all that were measured are counted. Sets called unseen
take no part in the fit."""

from __future__ import annotations

import argparse
import collections
import ctypes
import itertools
import json
import pathlib
import re

import numpy as np
from scipy.optimize import minimize

HERE = pathlib.Path(__file__).resolve().parent
MULTICAST = {"none": 0, "a": 1, "b": 2, "either": 3}
ROUTING = {"balanced": 0, "skewed": 1, "scattered": 2}
FILES = [f"{run}-{gpu}.json" for run in ("times", "again", "scattered") for gpu in ("h100", "h200")]


def scalar_names() -> list[str]:
    """The names of the constants before the tables, in the order in which the structure declares them."""
    text = (HERE.parent / "src/plan/hopper_cost.h").read_text()
    body = text[text.index("struct HopperCosts {") : text.index("double tile[")]
    return [n.strip() for names in re.findall(r"^  double ([^;]+);", body, re.M) for n in names.split(",")]


class Times:
    """Measured times of all candidates. A problem is measured under one routing or several; `units` has the places of
    the records that share a choice."""

    def __init__(self, library: str, files: list[pathlib.Path]) -> None:
        lib = self.lib = ctypes.CDLL(library)
        lib.costs_add_problem.argtypes = (
            [ctypes.c_int32] + [ctypes.c_double] * 3 + [ctypes.c_int64] * 5 + [ctypes.c_int32] * 2
        )
        lib.costs_add_problem.restype = None
        self.records, seconds, start = [], [], [0]
        for path in files:
            device = json.loads(path.read_text())
            for record in device["times"]:
                words = record["problem"].split()
                total, n, k = map(int, words[:3])
                option = {words[i]: words[i + 1] for i in range(3, len(words) - 1) if words[i].startswith("--")}
                lib.costs_add_problem(
                    device["sm_count"],
                    device["l2_bytes"],
                    device["memory_rate"],
                    device["clock"],
                    total,
                    n,
                    k,
                    int(option["--groups"]),
                    int(option["--expected-rows"]),
                    int(option["--activation"] == "swiglu"),
                    ROUTING[record["routing"]],
                )
                names = []
                for name, time in zip(device["kernels"], record["seconds"], strict=True):
                    if time is None:
                        continue
                    schedule, tile, *multicast = name.split(":")
                    m, columns = map(int, tile.split("x"))
                    shared = MULTICAST[multicast[0]] if multicast else 0
                    if not lib.costs_add_candidate(int(schedule == "pingpong"), m, columns, shared):
                        raise SystemExit(f"fit_plan.py: {path.name}: {name} is no candidate of {record['problem']}")
                    seconds.append(abs(time))
                    names.append(name)
                start.append(len(seconds))
                self.records.append({"gpu": device["gpu"], "names": names} | record)
        self.seconds, self.start = np.array(seconds), np.array(start)
        counts = np.diff(self.start)
        self.record = np.repeat(np.arange(len(counts)), counts)
        self.best = np.minimum.reduceat(self.seconds, self.start[:-1])
        self.regret = self.seconds / self.best[self.record] - 1
        units: dict[tuple, list[int]] = {}
        for i, r in enumerate(self.records):
            units.setdefault((r["gpu"], r["set"], r["problem"]), []).append(i)
        self.units = []
        for places in units.values():  # candidates stand in the same order under both routings
            assert all(self.records[i]["names"] == self.records[places[0]]["names"] for i in places)
            self.units.append(places)

    def predict(self, constants: np.ndarray, planned: bool = False) -> np.ndarray:
        """The logarithms of the times under the routings measured, or of those by which the plan chooses."""
        found = np.empty(len(self.seconds))
        values = np.ascontiguousarray(constants, dtype=np.float64)
        pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
        self.lib.costs_predict(pointer(values), int(planned), pointer(found))
        return np.log(found)

    def constants(self) -> np.ndarray:
        values = np.empty(self.lib.costs_count())
        self.lib.costs_default(values.ctypes.data_as(ctypes.c_void_p))
        return values

    def of_units(self, values: np.ndarray) -> np.ndarray:
        """Means over the records of each unit, candidate by candidate."""
        return np.concatenate(
            [np.mean([values[self.start[i] : self.start[i + 1]] for i in unit], axis=0) for unit in self.units]
        )


def fit_scalars(times: Times, x: np.ndarray, count: int, train: np.ndarray, steps: int) -> np.ndarray:
    """Levenberg and Marquardt on the logarithms of times. What counts is the order of good kernels: each problem's mean
    error weighs little, and kernels far from the best one hardly count."""
    weight = np.exp(-np.minimum(times.regret, 0.6) / 0.12) * train[times.record]
    weight /= np.maximum(np.add.reduceat(weight, times.start[:-1]), 1e-9)[times.record]
    measured = np.log(times.seconds)
    first = np.log(x[:count])

    def residuals(y: np.ndarray) -> np.ndarray:
        error = times.predict(np.concatenate([np.exp(y), x[count:]])) - measured
        mean = np.add.reduceat(weight * error, times.start[:-1])
        spread = np.sqrt(weight) * (error - mean[times.record])
        return np.concatenate([spread, 0.3 * mean * train, 0.02 * (y - first)])

    huber = lambda r: (np.minimum(np.abs(r), 0.15) * np.abs(r)).sum()
    y, damping = first.copy(), 1e-2
    r = residuals(y)
    for _ in range(steps):
        jacobian = np.array([(residuals(y + h) - r) / 2e-3 for h in np.eye(count) * 2e-3]).T
        robust = np.where(np.abs(r) < 0.15, 1, 0.15 / np.maximum(np.abs(r), 1e-9))
        normal, slope = jacobian.T @ (jacobian * robust[:, None]), jacobian.T @ (r * robust)
        for _ in range(6):
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), slope)
            tried = np.clip(y + np.clip(step, -0.5, 0.5), first - 3, first + 3)
            found = residuals(tried)
            if huber(found) < huber(r):
                break
            damping *= 5
        else:
            break
        gained = 1 - huber(found) / huber(r)
        y, r, damping = tried, found, max(damping / 4, 1e-6)
        if gained < 2e-4:
            break
    return np.concatenate([np.exp(y), x[count:]])


class Tables:
    """What the formulas leave is linear in the tables, so the model's derivatives are all that is needed. The tables
    minimize the regret of a choice at random among the kernels that are predicted to be nearly equal."""

    def __init__(self, times: Times, x: np.ndarray, count: int) -> None:
        self.times = times
        bare = np.concatenate([x[:count], np.zeros(len(x) - count)])
        base, planned = times.predict(bare), times.predict(bare, planned=True)
        features, of_choice = [], []
        for i in range(count, len(x)):
            moved = bare.copy()
            moved[i] = 1
            features.append(times.of_units(times.predict(moved) - base))
            of_choice.append(times.of_units(times.predict(moved, planned=True) - planned))
        self.features, self.of_choice = np.array(features).T, np.array(of_choice).T
        self.base = times.of_units(planned)
        self.error = times.of_units(np.log(times.seconds) - base)
        self.regret = times.of_units(times.regret)
        self.lengths = np.array([times.start[u[0] + 1] - times.start[u[0]] for u in times.units])
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])

    def fit(self, train: np.ndarray, temperature: float = 0.01, ridge: float = 0.1, errors: float = 1.0) -> np.ndarray:
        rows = np.repeat(train, self.lengths)
        features, of_choice = self.features[rows], self.of_choice[rows]
        base, error = self.base[rows], self.error[rows]
        regret = np.minimum(self.regret[rows], 0.5)
        lengths, units = self.lengths[train], train.sum()
        at = np.concatenate([[0], np.cumsum(lengths)])[:-1]
        unit = np.repeat(np.arange(units), lengths)
        weight = np.exp(-np.minimum(self.regret[rows], 1) / 0.15)
        weight /= np.add.reduceat(weight, at)[unit]

        def loss(c: np.ndarray) -> tuple[float, np.ndarray]:
            score = base + of_choice @ c
            chance = np.exp(-(score - np.minimum.reduceat(score, at)[unit]) / temperature)
            chance /= np.add.reduceat(chance, at)[unit]
            mean = np.add.reduceat(chance * regret, at)
            slope = of_choice.T @ (-chance * (regret - mean[unit]) / temperature)
            left = error - features @ c
            left -= np.add.reduceat(weight * left, at)[unit]
            total = mean.sum() + errors * (weight * left**2).sum() + ridge * (c @ c)
            return total / units, (slope - 2 * errors * (features.T @ (weight * left)) + 2 * ridge * c) / units

        return minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 150}).x

    def chosen(self, c: np.ndarray) -> np.ndarray:
        """The candidate that each unit gets, counted from the unit's first."""
        score = self.base + self.of_choice @ c
        return np.array([np.argmin(score[a:b]) for a, b in itertools.pairwise(self.starts)])


def regrets(times: Times, chosen: np.ndarray, which: np.ndarray, routings=tuple(ROUTING)) -> np.ndarray:
    return np.array([
        times.regret[times.start[i] + chosen[u]]
        for u, unit in enumerate(times.units)
        if which[u]
        for i in unit
        if times.records[i]["routing"] in routings
    ])


def describe(values: np.ndarray) -> str:
    if len(values) == 0:
        return "none"
    return (
        f"mean {values.mean():6.2%}  95th percentile {np.quantile(values, 0.95):6.1%}  worst {values.max():6.1%}"
        f"  over 10%: {(values > 0.1).sum()} of {len(values)}"
    )


def report(times: Times, chosen: np.ndarray, worst: int) -> None:
    for gpu in sorted({r["gpu"] for r in times.records}):
        for name in sorted({r["set"] for r in times.records}):
            firsts = [times.records[unit[0]] for unit in times.units]
            which = np.array([first["gpu"] == gpu and first["set"] == name for first in firsts])
            print(f"{gpu:24} {name:13} {describe(regrets(times, chosen, which))}")
            if len(regrets(times, chosen, which, ["scattered"])) > 0:
                for routing in ROUTING:
                    print(f"{'':27} {routing:10} {describe(regrets(times, chosen, which, [routing]))}")
    listed = sorted(
        ((times.regret[times.start[i] + chosen[u]], i, u) for u, unit in enumerate(times.units) for i in unit),
        reverse=True,
    )
    for regret, i, u in listed[:worst]:
        r = times.records[i]
        best = r["names"][int(np.argmin(times.seconds[times.start[i] : times.start[i + 1]]))]
        print(f"  {regret:6.1%} {r['gpu']}: {r['problem']}, {r['routing']}: {r['names'][chosen[u]]}, best {best}")


def again(times: Times, chosen: np.ndarray) -> None:
    """Says how the choice and the best kernel compare in later times, where these were taken for this choice: the best
    of many times is partly luck, and does not win by as much again."""
    found = collections.defaultdict(list)
    for u, unit in enumerate(times.units):
        for i in unit:
            r = times.records[i]
            if "again" in r and r["again"][0] == r["names"][chosen[u]]:
                found[r["gpu"], r["set"]].append(r["again"][1] / r["again"][3] - 1)
    for (gpu, name), values in sorted(found.items()):
        print(f"{gpu:24} {name:13} timed again: {describe(np.array(values))}")


def write_regrets(path: pathlib.Path, times: Times, chosen: np.ndarray) -> None:
    """What bench/report_unseen.py shows: the choice for each problem, and its regret."""
    lines = []
    for u, unit in enumerate(times.units):
        for i in unit:
            r = times.records[i]
            record = {name: r[name] for name in ("gpu", "set", "problem", "routing")}
            record |= {"kernel": r["names"][chosen[u]], "regret": round(times.regret[times.start[i] + chosen[u]], 4)}
            if "again" in r and r["again"][0] == record["kernel"]:
                record["again"] = round(r["again"][1] / r["again"][3] - 1, 4)
            lines.append(json.dumps(record))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def write(path: pathlib.Path, names: list[str], x: np.ndarray) -> None:
    lines = ["// SPDX-License-Identifier: Apache-2.0", "// Written by bench/fit_plan.py."]
    lines += [f".{name} = {value:.4g}," for name, value in zip(names, x[: len(names)], strict=True)]
    tables = x[len(names) :]
    tiles = tables[: len(tables) - 60].reshape(-1, 3)
    row = lambda values: "{" + ", ".join(f"{v:.4f}" for v in values) + "}"
    lines += [".tile = {", *(row(values) + "," for values in tiles), "},", ".share = {"]
    for family in tables[len(tables) - 60 :].reshape(5, 4, 3):
        lines.append("{" + ", ".join(row(values) for values in family) + "},")
    path.write_text("\n".join([*lines, "},"]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", nargs="*", default=[str(HERE / "results" / f) for f in FILES], help="measured times")
    parser.add_argument("--library", default=str(HERE.parent / "build/lib/libmoxie_plan_costs.so"))
    parser.add_argument("--report", action="store_true", help="change nothing")
    parser.add_argument("--worst", type=int, default=0, help="list so many of the worst choices")
    parser.add_argument("--steps", type=int, default=12, help="of the fit of the constants that are no tables")
    parser.add_argument("--regrets", help="write each problem's choice and regret, for bench/report_unseen.py")
    parser.add_argument("--out", help="the constants, for src/plan/hopper_costs.inc")
    arguments = parser.parse_args()

    times = Times(arguments.library, [pathlib.Path(f) for f in arguments.times])
    names, x = scalar_names(), times.constants()
    if not arguments.report:
        train = np.array([not r["set"].startswith("unseen") for r in times.records], float)
        bare = np.concatenate([x[: len(names)], np.zeros(len(x) - len(names))])
        x = fit_scalars(times, bare, len(names), train, arguments.steps)
        tables = Tables(times, x, len(names))
        seen = np.array([not times.records[u[0]]["set"].startswith("unseen") for u in times.units])
        problems = sorted({r["problem"] for r in times.records})
        fold = dict(zip(problems, np.random.default_rng(0).integers(5, size=len(problems)), strict=True))
        of = np.array([fold[times.records[u[0]]["problem"]] for u in times.units])
        left_out = np.zeros(len(times.units), int)
        for f in range(5):
            left_out[of == f] = tables.chosen(tables.fit(seen & (of != f)))[of == f]
        print(f"cross-validated by problem (the tables alone): {describe(regrets(times, left_out, seen))}")
        x = np.concatenate([x[: len(names)], tables.fit(seen)])
    tables = Tables(times, x, len(names))
    chosen = tables.chosen(x[len(names) :])
    report(times, chosen, arguments.worst)
    again(times, chosen)
    if arguments.regrets:
        write_regrets(pathlib.Path(arguments.regrets), times, chosen)
    if arguments.out:
        write(pathlib.Path(arguments.out), names, x)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`moxie quantize` against ml_dtypes, an independent implementation of the element and scale types: bit for bit on a
million values, by the CPU and by the kernels of both architectures in the simulator.

    quantize_agreement.py MOXIE [SEED]

Exit status 77 where ml_dtypes or numpy is not installed."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def telling_values(count, random):
    """Every bf16, any float32 (infinities and NaN among them), zeros, subnormals, ties and their neighbours, mixed so
    that most blocks are of one kind."""
    kinds = [
        np.arange(65536, dtype=np.uint32).astype(np.uint32) << 16,
        random.integers(0, 1 << 32, count // 4, dtype=np.uint32),
        random.integers(0, 1 << 23, count // 32, dtype=np.uint32),
        np.zeros(1024, np.uint32),
    ]
    parts = [bits.view(np.float32) for bits in kinds]
    halves = random.integers(-64, 65, count // 4).astype(np.float32) / 8
    powers = np.ldexp(np.float32(1), random.integers(-120, 120, len(halves) // 32).repeat(32))
    parts.append(halves[: len(powers)] * powers)
    parts.append(np.nextafter(halves[: count // 16], np.float32(9)))
    parts.append(random.integers(-1024, 1025, count // 16).astype(np.float32) / 32)
    rest = count - sum(len(part) for part in parts)
    parts.append(random.standard_normal(rest).astype(np.float32))
    return np.concatenate(parts)


def expected(values, kind, dtype):
    """Elements (one a byte), scales, tensor scale."""
    size = 16 if kind == "nvfp4" else 32
    blocks = values.astype(np.float32).reshape(-1, size)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(blocks), axis=1)
        finite = np.isfinite(amax)
        if kind == "nvfp4":
            of_tensor = np.max(np.abs(values[np.isfinite(values)]), initial=np.float32(0)).astype(np.float32)
            tensor_scale = np.maximum(of_tensor / np.float32(6 * 448), np.float32(2.0**-126))
            exact = np.minimum(amax / (np.float32(6) * tensor_scale), np.float32(448))
            scales = np.where(finite, exact, np.float32("nan")).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
            divisor = scales.astype(np.float32) * tensor_scale
        else:
            tensor_scale = None
            _, exponent = np.frexp(np.where(finite, amax, np.float32(1)).astype(np.float64))
            exponent = np.where(amax == 0, -127, np.maximum(exponent - 1 - (8 if kind == "mxfp8" else 2), -127))
            divisor = np.ldexp(1.0, exponent)
            scales = np.where(finite, divisor, np.nan).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
        quotients = np.where((finite & (divisor > 0))[:, None], blocks / divisor[:, None], 0).astype(np.float32)
    if kind == "mxfp8":
        elements = np.clip(quotients, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    else:
        elements = quotients.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    codes = scales.view(np.uint8).copy()
    codes[~finite] = 127 if kind == "nvfp4" else 255  # one NaN of several
    return elements.reshape(-1), codes, tensor_scale


def write(path, name, dtype, array):
    data = array.tobytes()
    header = json.dumps({name: {"dtype": dtype, "shape": list(array.shape), "data_offsets": [0, len(data)]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: (entry["dtype"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if name != "__metadata__"}


def check(program, folder, kind, dtype, values, place):
    where, environment = place
    with np.errstate(all="ignore"):
        stored = values.astype(ml_dtypes.bfloat16) if dtype == "BF16" else values
    values = stored.astype(np.float32)
    write(f"{folder}/in", "x", dtype, stored.reshape(-1, 2048))
    subprocess.run([program, "quantize", f"{folder}/in", f"{folder}/out", "--format", kind, "--tensors", "x", "--on",
                    where], check=True, env={**os.environ, **environment})
    found = read(f"{folder}/out")
    elements, scales, tensor_scale = expected(values, kind, dtype)
    got = np.frombuffer(found["x"][1], np.uint8)
    if kind != "mxfp8":
        got = np.stack([got & 15, got >> 4], axis=1).reshape(-1)
    wrong = int(np.count_nonzero(got != elements))
    wrong_scales = int(np.count_nonzero(np.frombuffer(found["x_scales"][1], np.uint8) != scales))
    wrong_tensor = 0
    if kind == "nvfp4":
        wrong_tensor = int(np.frombuffer(found["x_tensor_scale"][1], np.float32)[0] != tensor_scale)
    label = environment.get("MOXIE_SIM_ARCH", "host")
    print(f"{kind} of {dtype} on {label}: {len(values)} values, {wrong} elements, {wrong_scales} scales and "
          f"{wrong_tensor} tensor scales differ")
    return wrong == wrong_scales == wrong_tensor == 0 and len(got) == len(values)


def main():
    program = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}, ml_dtypes {ml_dtypes.__version__}")
    random = np.random.default_rng(seed)
    simulated = [("device", {"MOXIE_DEVICE": "sim", "MOXIE_SIM_ARCH": arch}) for arch in ("sm_90a", "sm_100a")]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("mxfp4", "mxfp8", "nvfp4"):
            for dtype in ("F32", "BF16"):
                values = telling_values(1 << 20, random)
                good &= check(program, folder, kind, dtype, values, ("host", {}))
                for place in simulated:
                    count = 1 << 20 if kind == "mxfp4" and dtype == "F32" else 1 << 17
                    good &= check(program, folder, kind, dtype, random.permutation(values.reshape(-1, 32)).reshape(
                        -1)[:count], place)
    sys.exit(0 if good else 1)


main()

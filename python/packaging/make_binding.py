# SPDX-License-Identifier: Apache-2.0
"""Writes moxie/_c.py, cffi's description of the interface in C, from include/moxie/c.h itself.

    python make_binding.py INCLUDE_FOLDER OUTPUT COMPILER [ARGUMENT...]

The compiler's preprocessor reads the header, without the system's, so that structures and functions have one
description. The result is Python alone and fits every version of it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import cffi

# What a caller's array says of itself: DLPack, https://dmlc.github.io/dlpack/latest/c_api.html.
DLPACK = """
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
"""


def declarations(include, compiler):
    header = pathlib.Path(include, "moxie/c.h")
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stddef.h", "stdint.h"):  # cffi knows their types
            pathlib.Path(empty, name).touch()
        command = [*compiler, "-E", "-P", "-nostdinc", "-I", empty, "-I", str(include), "-DMOXIE_API=", "-x", "c"]
        text = subprocess.run([*command, str(header)], check=True, stdout=subprocess.PIPE, text=True).stdout
    constants = re.findall(r"^#define (MOXIE_\w+) \((-?\d+)\)$", header.read_text(), re.MULTILINE)
    return text + "".join(f"#define {name} {value}\n" for name, value in constants)


def main():
    include, output, *compiler = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.cdef(declarations(include, compiler))
    ffi.cdef(DLPACK)
    ffi.set_source("moxie._c", None)
    ffi.emit_python_code(output)


if __name__ == "__main__":
    main()

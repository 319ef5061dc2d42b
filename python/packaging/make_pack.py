# SPDX-License-Identifier: Apache-2.0
"""Writes the pack of the kernels that moxie.selftest() needs, for the package that PYTHONPATH names.

python make_pack.py FOLDER
"""

import os
import pathlib
import shutil
import sys

folder = pathlib.Path(sys.argv[1])
shutil.rmtree(folder, ignore_errors=True)
os.environ["MOXIE_CACHE_DIR"] = str(folder)

from moxie._library import check, ffi, lib  # noqa: E402
from moxie._selftest import compute  # noqa: E402

# A pack of no product names its compiler; then the self-test itself fills it.
check(lib.moxie_pack(ffi.NULL, 0, str(folder).encode(), ffi.NULL, ffi.NULL))
print(compute())
for entry in folder.iterdir():
    if entry.suffix == ".nvrtc":  # of the compiler here
        entry.unlink()
    else:
        entry.chmod(0o644)
if not list(folder.glob("*.ptx")):
    sys.exit(f"{folder}: the self-test compiled nothing")

# SPDX-License-Identifier: Apache-2.0
"""Writes PACKAGE/pack, the kernels that moxie.selftest() needs.

python make_pack.py PACKAGE
"""

import os
import pathlib
import shutil
import sys

package = pathlib.Path(sys.argv[1])
folder = package / "pack"
sys.path.insert(0, str(package.parent))
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

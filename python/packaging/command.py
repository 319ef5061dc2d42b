#!python
# SPDX-License-Identifier: Apache-2.0
"""The command `moxie`: becomes the program that the package holds, which it finds without importing it."""

import importlib.util
import os
import sys

package = importlib.util.find_spec("moxie")
if package is None or package.origin is None:
    sys.exit("moxie: the package moxie is not installed beside this command")
program = os.path.join(os.path.dirname(package.origin), "bin", "moxie")
os.execv(program, [program, *sys.argv[1:]])

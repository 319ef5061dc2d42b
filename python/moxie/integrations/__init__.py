# SPDX-License-Identifier: Apache-2.0
"""Moxie in other libraries."""

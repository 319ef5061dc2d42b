# SPDX-License-Identifier: Apache-2.0
"""Moxie as the experts of vLLM (0.33 or newer), where the environment variable MOXIE_VLLM is 1.

    MOXIE_VLLM=1 vllm serve openai/gpt-oss-20b

A wheel of Moxie beside vLLM is a plugin of vLLM: each of its processes calls `register`, which does nothing where
MOXIE_VLLM is 0 or not set. vLLM's own extension points do the rest: its method for unquantized experts is replaced by
a subclass, as platforms do it, and so are the configurations of MXFP4 checkpoints. Where a layer's configuration suits,
those subclasses name moxie.integrations.vllm_experts.MoxieExperts or MoxieMxfp4Experts as the layer's experts; where it
does not, or where --moe-backend names a backend, the layer keeps vLLM's own, and the log says why.
"""

from __future__ import annotations

import inspect
import os

__all__ = ["register"]

_NEEDED = "MOXIE_VLLM is 1, which needs vllm 0.33 or newer with the interface of experts that 0.33 has"


def _wanted() -> bool:
    value = os.environ.get("MOXIE_VLLM", "0")
    if value not in ("0", "1"):
        raise ValueError(f"MOXIE_VLLM is {value!r}, but must be 0 or 1")
    return value == "1"


def register() -> None:
    """Makes Moxie's experts known to this process's vLLM where MOXIE_VLLM is 1.

    RuntimeError: vLLM is missing, or its interface is another one. A second call does nothing.
    """
    if not _wanted():
        return
    try:
        import vllm
    except ImportError as error:
        raise RuntimeError(f"{_NEEDED}, but importing vllm says: {error}") from error
    try:
        from moxie.integrations import vllm_experts as ours
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"{_NEEDED}, but this is {vllm.__version__}: {error}") from error
    for class_ in (ours.MoxieExperts, ours.MoxieMxfp4Experts):
        for name in ("apply", "workspace_shapes", "is_supported_config"):
            mine, theirs = (inspect.signature(getattr(each, name)).parameters for each in (class_, ours.BASE))
            if list(mine) != list(theirs):
                raise RuntimeError(
                    f"{_NEEDED}, but in {vllm.__version__} the parameters of {ours.BASE.__name__}.{name} are "
                    f"{', '.join(theirs)}"
                )
        if class_.__abstractmethods__:
            missing = ", ".join(sorted(class_.__abstractmethods__))
            raise RuntimeError(f"{_NEEDED}, but {vllm.__version__} wants {missing} of experts as well")
    ours.install()

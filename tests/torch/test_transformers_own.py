# SPDX-License-Identifier: Apache-2.0
"""transformers' own test of its experts implementations, with "moxie" among them: models are saved, loaded again and
computed with each, in three types. scripts/test-torch brings its source, which no wheel holds."""

import os
import sys
import types
import unittest
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", "5.23")

from test_transformers import MODELS, configuration  # noqa: E402
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: E402

import moxie.integrations.transformers as integration  # noqa: E402

integration.register()
FOLDER = Path(os.environ.get("MOXIE_TRANSFORMERS_TESTS", "none"))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "test_modeling_common.py").is_file(),
    reason="MOXIE_TRANSFORMERS_TESTS names no folder with transformers' own tests",
)
# What its list of implementations becomes, and who counts their calls.
CHANGES = {
    'implementations = ["eager", "batched_mm", "grouped_mm"]': (
        'implementations = ["eager", "batched_mm", "grouped_mm", "moxie"]'
    ),
    '"grouped_mm": Mock(wraps=grouped_mm_experts_forward),\n': (
        '"grouped_mm": Mock(wraps=grouped_mm_experts_forward), "moxie": Mock(wraps=MOXIE),\n'
    ),
}


@pytest.fixture(scope="module")
def own():
    """transformers' module, with what it imports from other tests left empty."""
    path = FOLDER / "test_modeling_common.py"
    text = path.read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1, f"{path} has changed"
        text = text.replace(old, new)
    made = {}
    for name, names in {
        "tests": (), "tests.exporters": (), "tests.exporters.test_export": ("ExportTesterMixin",),
        "tests.generation": (), "tests.generation.test_utils": ("GenerationTesterMixin",),
        "tests.test_modeling_common": (),
    }.items():  # fmt: skip
        made[name] = types.ModuleType(name)
        made[name].__path__ = [str(FOLDER)] if name == "tests" else []
        vars(made[name]).update({each: type(each, (), {}) for each in names})
    module = made["tests.test_modeling_common"]
    module.__package__, module.__file__, module.MOXIE = "tests", str(path), ALL_EXPERTS_FUNCTIONS["moxie"]
    before = dict(sys.modules)
    sys.modules.update(made)
    try:
        exec(compile(text, str(path), "exec"), vars(module))
        yield module
    finally:
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] == "tests":
                del sys.modules[name]


class Tester:
    """What the mixin asks for a model's configuration and inputs."""

    def __init__(self, name):
        self.name = name

    def prepare_config_and_inputs_for_common(self):
        ids = torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(5))
        return configuration(self.name), {"input_ids": ids}


def run(own, name, dtype):
    model_class = getattr(transformers, f"{name}ForCausalLM")
    case = type("Case", (own.ModelTesterMixin, unittest.TestCase), {"all_model_classes": (model_class,)})()
    case.model_tester = Tester(name)
    own._test_eager_matches_batched_and_grouped_inference(case, "", dtype)


@pytest.mark.parametrize("name", MODELS)
def test_in_bf16(own, name):
    run(own, name, "bf16")


@pytest.mark.parametrize("dtype, said", [("fp32", "torch.float32"), ("fp16", "torch.float16")])
@pytest.mark.parametrize("name", MODELS)
def test_other_types_are_refused(own, name, dtype, said):
    with pytest.raises(ValueError, match=f"which computes in bf16, but weights are {said}"):
        run(own, name, dtype)

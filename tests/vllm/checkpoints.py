# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints with random weights, as transformers writes them."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}
KINDS = ("gpt_oss", "gpt_oss_mxfp4", "qwen3_moe")


def write(kind: str, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """Writes a checkpoint into a folder, and returns its tensors."""
    if kind == "qwen3_moe":
        config = Qwen3MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=192, intermediate_size=192)
        model = Qwen3MoeForCausalLM(config)
    else:
        model = GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=8, intermediate_size=192))
    model.bfloat16().save_pretrained(folder)
    file = folder / "model.safetensors"
    # Larger than what training begins with, so that every term of a layer shows in its result.
    tensors = {
        name: torch.randn_like(value) * (0.2 if "experts" in name or "router" in name else 0.05)
        if "norm" not in name
        else value
        for name, value in load_file(file).items()
    }
    if kind == "gpt_oss_mxfp4":
        for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
            experts, k, n = tensors.pop(name).shape
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(121, 125, (experts, n, k // 32), dtype=torch.uint8)
        text = json.loads((folder / "config.json").read_text())
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        text["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
        (folder / "config.json").write_text(json.dumps(text))
    save_file(tensors, file, metadata={"format": "pt"})
    return tensors

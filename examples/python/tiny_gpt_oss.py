# SPDX-License-Identifier: Apache-2.0
"""A tiny GPT-OSS with random weights, made from a configuration, generates with experts by Moxie and by transformers.

    MOXIE_DEVICE=sim python tiny_gpt_oss.py    # without a GPU: the simulator computes
"""

import os

import torch
from transformers import AutoModelForCausalLM, GptOssConfig, logging

import moxie.integrations.transformers

logging.set_verbosity_error()
moxie.integrations.transformers.register()
device = "cpu" if os.environ.get("MOXIE_DEVICE") == "sim" else "cuda"

torch.manual_seed(0)
config = GptOssConfig(
    vocab_size=256, hidden_size=128, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=256,
    eos_token_id=None, pad_token_id=0,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, experts_implementation="moxie").eval().to(device)
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(std=0.1)
prompt = torch.tensor([[11, 42, 7, 200, 99]], device=device)

logits, generated = {}, {}
for implementation in ("moxie", "eager"):
    model.set_experts_implementation(implementation)
    with torch.no_grad():
        logits[implementation] = model(prompt).logits.double()
    generated[implementation] = model.generate(prompt, max_new_tokens=12, do_sample=False)[0].tolist()
    print(f"{implementation:6} {generated[implementation]}")
error = (logits["moxie"] - logits["eager"]).norm() / logits["eager"].norm()
print(f"logits differ by {error:.1e}, in bf16")
assert error < 3e-2

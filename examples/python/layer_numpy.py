# SPDX-License-Identifier: Apache-2.0
"""A layer of a Mixture-of-Experts model in numpy: described, planned and compiled once, then run.

python examples/python/layer_numpy.py

It runs on a GPU, or without one on the simulator. GPT-OSS's layer in small: router, top 2 of 8 experts, gate and up
interleaved, biases. The second time its weights are MXFP4.
"""

import numpy as np

import moxie

TOKENS, EXPERTS, TOP_K, HIDDEN, WIDTH = 24, 8, 2, 128, 96


def main():
    device = moxie.Device()  # a GPU that the library supports, else the simulator
    print(device)
    random = np.random.default_rng(0)
    x = moxie.to_bf16(random.standard_normal((TOKENS, HIDDEN)))
    up = moxie.to_bf16(random.standard_normal((EXPERTS, 2 * WIDTH, HIDDEN)) / HIDDEN**0.5)
    down = moxie.to_bf16(random.standard_normal((EXPERTS, HIDDEN, WIDTH)) / WIDTH**0.5)
    biases = {
        "up_bias": moxie.to_bf16(random.standard_normal((EXPERTS, 2 * WIDTH))),
        "down_bias": moxie.to_bf16(random.standard_normal((EXPERTS, HIDDEN))),
    }
    logits = random.standard_normal((TOKENS, EXPERTS)).astype(np.float32)

    layer = {"experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "width": WIDTH, "max_tokens": TOKENS}
    layer |= {"activation": "swiglu_oai", "up_bias": True, "down_bias": True, "router": moxie.Router()}
    y = moxie.ExpertLayer(device, **layer)(x, up, down, logits=logits, **biases)
    print(f"y {y.shape} {y.dtype}, norm {np.linalg.norm(moxie.from_bf16(y)):.3f}")

    # The same with weights as GPT-OSS's checkpoints have them: codes and scales, packed once for the kernels.
    codes_up, scales_up, _ = moxie.quantize(device, up, "mxfp4", layout="row_major")
    codes_down, scales_down, _ = moxie.quantize(device, down, "mxfp4", layout="row_major")
    packed_up = moxie.pack_weights(device, codes_up, scales_up, gate="interleaved")
    packed_down = moxie.pack_weights(device, codes_down, scales_down)
    packed = moxie.ExpertLayer(device, **layer, weights="mxfp4")
    z = packed(x, packed_up, packed_down, logits=logits, **biases)
    off = moxie.from_bf16(z) - moxie.from_bf16(y)
    print(f"MXFP4: {packed_up.nbytes + packed_down.nbytes} bytes of weights for {up.nbytes + down.nbytes}, "
          f"off by {np.linalg.norm(off) / np.linalg.norm(moxie.from_bf16(y)):.3f} of the norm")
    print("kernels:", *(plan.kernel for plan in packed.plan()), sep="\n  ")


if __name__ == "__main__":
    main()

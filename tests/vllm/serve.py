# SPDX-License-Identifier: Apache-2.0
"""On a machine with a Hopper GPU and vLLM: tiny models generate with vLLM's own experts and with Moxie's.

Each of three checkpoints with random weights is served eagerly and with CUDA graphs. The log probabilities of the first
token behind each prompt must agree, and every layer must have Moxie's experts where they are asked for. Greedy tokens
are counted, since those of random models part where two are about as probable.
usage: python tests/vllm/serve.py [--tokens 32]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROMPTS = [[1], list(range(2, 40)), list(range(40, 340)), [7, 7, 7, 9]]


def generate(folder: str, eager: bool, tokens: int) -> None:
    """Runs in a process of its own. Prints the classes of experts, tokens and first log probabilities in one line."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=eager,
        max_model_len=512,
        gpu_memory_utilization=0.3,
        seed=0,
    )
    classes = llm.apply_model(
        lambda model: sorted(
            {
                type(module.quant_method.moe_kernel.fused_experts).__name__
                for module in model.modules()
                if getattr(getattr(module, "quant_method", None), "moe_kernel", None) is not None
            }
        )
    )
    greedy = SamplingParams(temperature=0, max_tokens=tokens, logprobs=5, detokenize=False, ignore_eos=True)
    results = [each.outputs[0] for each in llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], greedy)]
    first = [{str(id): value.logprob for id, value in each.logprobs[0].items()} for each in results]
    print("RESULT", json.dumps({"classes": classes, "tokens": [list(r.token_ids) for r in results], "first": first}))


def run(folder: pathlib.Path, eager: bool, tokens: int, moxie: str) -> dict:
    environment = os.environ | {
        "MOXIE_VLLM": moxie,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    command = [sys.executable, __file__, "--generate", str(folder), "--tokens", str(tokens)] + ["--eager"] * eager
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return json.loads(lines[0].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32, help="to generate behind each prompt")
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generate:
        generate(given.generate, given.eager, given.tokens)
        return
    import torch
    from checkpoints import KINDS, write

    failed = False
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(7)
            write(kind, pathlib.Path(folder))
            for eager in (True, False):
                theirs, ours = (run(pathlib.Path(folder), eager, given.tokens, moxie) for moxie in "01")
                worst = max(
                    abs(a[id] - b[id])
                    for a, b in zip(theirs["first"], ours["first"], strict=True)
                    for id in a.keys() & b.keys()
                )
                pairs = [
                    (a, b)
                    for each, other in zip(theirs["tokens"], ours["tokens"], strict=True)
                    for a, b in zip(each, other, strict=True)
                ]
                expected = "MoxieMxfp4Experts" if kind == "gpt_oss_mxfp4" else "MoxieExperts"
                good = worst < 0.1 and ours["classes"] == [[expected]]
                failed |= not good
                print(
                    f"{kind:14} {'eager' if eager else 'graphs':6} {theirs['classes']} {ours['classes']}: first log "
                    f"probabilities differ by {worst:.3f}, {sum(a == b for a, b in pairs)} of {len(pairs)} tokens are "
                    f"equal{'' if good else ': WRONG'}",
                    flush=True,
                )
    sys.exit(failed)


if __name__ == "__main__":
    main()

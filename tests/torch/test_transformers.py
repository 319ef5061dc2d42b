# SPDX-License-Identifier: Apache-2.0
"""transformers' own models with random weights, made from configurations: "moxie" beside "eager"."""

import importlib
import inspect
import json
import pathlib
import re

import pytest
import torch
from support import DEVICE

transformers = pytest.importorskip("transformers", "5.23")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, CompileConfig, Mxfp4Config  # noqa: E402
from transformers.modeling_utils import PreTrainedModel  # noqa: E402

import moxie.integrations.transformers as integration  # noqa: E402
import moxie.torch  # noqa: E402

integration.register()
transformers.logging.set_verbosity_error()

# Other versions and a GPU round at other places.
PINNED = DEVICE == "cpu" and all(
    f"{each.__name__}=={each.__version__.split('+')[0]}\n"
    in pathlib.Path(__file__).with_name("requirements.txt").read_text()
    for each in (torch, transformers)
)
COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
MODELS = {
    "GptOss": {"num_local_experts": 4, "head_dim": 16},
    "Qwen3Moe": {"moe_intermediate_size": 32, "num_experts": 8, "head_dim": 16},
    "Mixtral": {"num_local_experts": 4},
    "DeepseekV3": {
        "moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "Olmoe": {"num_experts": 8},
    "Glm4Moe": {"moe_intermediate_size": 32, "n_routed_experts": 8, "first_k_dense_replace": 1, "head_dim": 16},
    "Qwen2Moe": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4},
}  # fmt: skip


def configuration(name):
    return getattr(transformers, f"{name}Config")(**{**COMMON, **MODELS[name]})


def tiny(name):
    # With these weights no token stands between two experts, where the least rounding would choose another one.
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(configuration(name), dtype=torch.bfloat16).eval().to(DEVICE)
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() > 1:
                each.normal_(std=0.15)
    return model


def tokens():
    return torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(3)).to(DEVICE)


def assert_same_logits(result, expected, tokens=slice(None)):
    """A layer's sums are rounded at other places, and the layers behind it carry that on."""
    result, expected = result[tokens].double(), expected[tokens].double()
    assert torch.isfinite(result).all()
    assert ((result - expected).norm(dim=-1) < 3e-2 * expected.norm(dim=-1)).all()


def routed(model):
    """The logits of a call, and the experts that every token met [B, S, ..]."""
    chosen = []
    hooks = [
        module.register_forward_pre_hook(lambda _, arguments: chosen.append(arguments[1].sort(-1).values))
        for name, module in model.named_modules()
        if name.endswith(".experts")
    ]
    logits = model(tokens()).logits
    for hook in hooks:
        hook.remove()
    assert chosen
    return logits, torch.cat(chosen, dim=-1).view(*tokens().shape, -1)


def assert_same_call(result, expected):
    """The same logits, but for tokens that stand between two experts, and those behind them that see them.

    Which of two experts with the same score a token meets, the least rounding decides. With the weights of `tiny` and
    the versions of requirements.txt none stands so.
    """
    (logits, chosen), (expected, of_expected) = result, expected
    same = (chosen == of_expected).all(dim=-1).cumprod(dim=1).bool()
    assert same.all() if PINNED else same.double().mean() >= 0.75
    assert_same_logits(logits, expected, same)


def greedy(model, **more):
    return model.generate(tokens(), max_new_tokens=8, min_new_tokens=8, do_sample=False, **more)


def greedy_with_logits(model):
    result = greedy(model, return_dict_in_generate=True, output_logits=True)
    return result.sequences, torch.stack(result.logits, dim=1)


def assert_same_tokens(result, expected, logits):
    """The same tokens, up to one that stands between two, which none does in the versions of requirements.txt."""
    assert torch.equal(result, expected) or not PINNED
    begin = tokens().shape[1]
    for row in range(len(result)):
        for step in range(begin, result.shape[1]):
            if result[row, step] != expected[row, step]:
                first, second = logits[row, step - begin].double().topk(2).values
                assert first - second < 0.1 * logits[row, step - begin].double().std()
                break


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    model = tiny(name)
    model.set_experts_implementation("eager")
    expected, generated = routed(model), greedy_with_logits(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.set_experts_implementation("moxie")
    result = routed(model)
    assert_same_call(result, expected)
    assert not torch.equal(result[0], expected[0])  # another implementation did compute
    assert_same_tokens(greedy(model), *generated)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens()).logits, result[0])
    # The model's parameters are what they were, and every other implementation still computes with them.
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    for other in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(other)
        assert_same_call(routed(model), expected)


@pytest.mark.parametrize("name", ["GptOss", "Qwen3Moe"])
def test_compiled_before_any_call(name):
    model = tiny(name)
    model.set_experts_implementation("moxie")
    expected = model(tokens()).logits
    model = tiny(name)
    model.set_experts_implementation("moxie")
    if integration._TORCH < (2, 15):
        integration.prepare(model)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(tokens()).logits, expected)


@pytest.mark.skipif(integration._TORCH < (2, 10), reason="before 2.10 torch cannot compile transformers' own")
def test_inductor():
    """Beside torch's own products under the same compiler, which rounds norms and routers at other places."""
    results = []
    for implementation in ("grouped_mm", "moxie"):
        model = tiny("Qwen3Moe")
        model.set_experts_implementation(implementation)
        integration.prepare(model)
        results.append(torch.compile(model, fullgraph=True)(tokens()).logits)
        torch._dynamo.reset()
    assert_same_logits(*results)


@pytest.mark.parametrize("name", ["GptOss", "Qwen3Moe"])
def test_generation_with_a_static_cache_is_compiled(name):
    model = tiny(name)
    model.set_experts_implementation("moxie")
    expected = greedy(model)
    compiled = CompileConfig(backend="aot_eager", fullgraph=True, mode=None)
    compiled._compile_all_devices = True
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert torch.equal(greedy(model, cache_implementation="static", compile_config=compiled), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before


def test_transposed_weights_have_one_copy():
    model = tiny("GptOss")
    model.set_experts_implementation("moxie")
    experts = model.model.layers[0].mlp.experts
    model(tokens())
    assert experts.gate_up_proj.shape == (4, 64, 64) and experts.gate_up_proj.stride() == (64 * 64, 1, 64)
    assert moxie.torch._matrices(experts.gate_up_proj.mT)[0].data_ptr() == experts.gate_up_proj.data_ptr()


def test_other_ranks_experts_are_skipped():
    """Expert parallelism marks them by ids from num_experts on, with whatever weight."""
    experts = tiny("Qwen3Moe").model.layers[0].mlp.experts
    x = torch.randn(9, 64, device=DEVICE).bfloat16()
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(9)]).to(DEVICE)
    weights = torch.rand(9, 2, device=DEVICE)
    off_rank = ids >= 5
    masked = weights.masked_fill(off_rank, 0)
    experts.config._experts_implementation = "eager"
    expected = experts(x, ids, masked)
    experts.config._experts_implementation = "moxie"
    experts._is_expert_parallel = True
    for w in (masked, weights):
        assert_same_logits(experts(x, torch.where(off_rank, 8, ids), w), expected)
    # The other way, by two products: what stands for a norm makes something of every row, also of those not computed.
    experts.has_post_expert_norm, experts.post_expert_norm = True, lambda rows: rows + 1
    integration.prepare(experts)
    expected = expected + masked.sum(-1, keepdim=True)
    for w in (masked, weights):
        assert_same_logits(experts(x, torch.where(off_rank, 8, ids), w), expected)


def test_a_method_for_experts_rows_is_called(monkeypatch):
    """Versions of transformers after 5.23 have a method, which most modules inherit and which then returns its rows."""
    experts = tiny("Qwen3Moe").model.layers[0].mlp.experts
    experts.config._experts_implementation = "moxie"
    x, ids = torch.randn(9, 64, device=DEVICE).bfloat16(), torch.arange(9, device=DEVICE)[:, None] % 8
    weights = torch.full((9, 1), 0.5, device=DEVICE)
    plain = experts(x, ids, weights)
    kind = type(experts)
    methods = (lambda self, rows: rows, lambda self, rows: rows + 2, lambda self, rows: 2 * rows.view(-1, 64))
    for method, expected in zip(methods, (plain, plain + 1, plain * 2), strict=True):
        monkeypatch.setattr(kind, "_apply_post_expert", method, raising=False)
        integration.prepare(experts)
        assert experts._moxie_gate.norm is (expected is not plain)
        assert_same_logits(experts(x, ids, weights), expected)


class OwnGate(torch.nn.Module):
    def forward(self, x):
        return x.abs().sqrt()


def test_a_gate_that_moxie_does_not_have_is_the_modules_own():
    model = tiny("Mixtral")
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = OwnGate()
    model.set_experts_implementation("eager")
    expected = routed(model)
    model.set_experts_implementation("moxie")
    result = routed(model)
    assert_same_call(result, expected)
    assert model.model.layers[0].mlp.experts._moxie_gate.activation is None
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(tokens()).logits, result[0])


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("silu", "swiglu"), ("gelu_pytorch_tanh", "geglu"), ("gelu_new", "geglu"), ("relu", "reglu"), ("gelu", None),
     ("quick_gelu", None), ("relu2", None), ("gelu_10", None), ("hardswish", None)],
)  # fmt: skip
def test_gates_are_recognized_by_what_they_compute(activation, expected):
    experts = tiny("Mixtral").model.layers[0].mlp.experts
    experts.act_fn = transformers.activations.ACT2FN[activation]
    assert integration.recognize(experts).activation == expected


def test_parameters_of_a_gate_are_recognized():
    experts = tiny("GptOss").model.layers[0].mlp.experts
    experts.alpha, experts.limit = 1.25, 3.0
    gate = integration.recognize(experts)
    assert gate == ("swiglu_oai", {"alpha": 1.25, "limit": 3.0}, "interleaved", False)
    experts._apply_gate = lambda gate_up: gate_up[..., ::2] * torch.sigmoid(1.25 * gate_up[..., ::2])
    assert integration.recognize(experts).activation is None


def test_other_types_are_refused():
    model = tiny("Qwen3Moe").float()
    model.set_experts_implementation("moxie")
    with pytest.raises(ValueError, match="which computes in bf16, but weights are torch.float32: load the model"):
        model(tokens())


def test_a_gradient_is_refused():
    model = tiny("Qwen3Moe")
    model.set_experts_implementation("moxie")
    with torch.enable_grad(), pytest.raises(RuntimeError, match="moxie.experts has no backward yet"):
        model(tokens())


def test_prepare_prepares_all():
    model = tiny("GptOss")
    integration.prepare(model)
    assert all(layer.mlp.experts._moxie_gate.activation == "swiglu_oai" for layer in model.model.layers)


# ---- GPT-OSS in MXFP4 ----


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder as GPT-OSS's checkpoints are."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    model, tensors = tiny("GptOss"), {}
    for name, value in model.state_dict().items():
        if name.endswith("_proj") and ".experts." in name:
            elements, scales = moxie.torch.quantize(value.detach().transpose(1, 2).contiguous())
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = elements.view(*scales.shape, 16), scales
        else:
            tensors[name] = value.detach().contiguous()
    save_file({name: value.cpu() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["GptOssForCausalLM"]
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def loaded(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more).to(DEVICE)


def test_gpt_oss_stays_in_mxfp4(checkpoint, tmp_path):
    dequantized = loaded(
        checkpoint, experts_implementation="eager", quantization_config=Mxfp4Config(dequantize=True)
    )
    expected, generated = routed(dequantized), greedy_with_logits(dequantized)
    model = loaded(checkpoint, experts_implementation="moxie")
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, integration.Mxfp4Experts)
    result = routed(model)
    assert_same_call(result, expected)
    logits = result[0]
    assert_same_tokens(greedy(model), *generated)
    assert experts.packed and not any("proj" in name and "bias" not in name for name, _ in experts.named_parameters())
    # Half a byte a weight, a scale for 32 of them, a byte a row.
    weights = 4 * (64 * 64 + 64 * 32)
    assert experts.gate_up_packed.nbytes + experts.down_packed.nbytes == weights * 17 // 32 + 4 * (64 + 64)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(tokens()).logits, logits)
    compiled = CompileConfig(backend="aot_eager", fullgraph=True, mode=None)
    compiled._compile_all_devices = True
    assert_same_tokens(greedy(model, cache_implementation="static", compile_config=compiled), *generated)
    # Saved, it is the checkpoint again.
    model.save_pretrained(tmp_path)
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[name], original[name]) for name in saved)
    assert torch.equal(loaded(tmp_path, experts_implementation="moxie")(tokens()).logits, logits)


def test_quantizing_on_the_fly_is_refused(tmp_path):
    tiny("GptOss").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="which reads checkpoints in MXFP4, but this one is not"):
        loaded(tmp_path, experts_implementation="moxie", quantization_config=Mxfp4Config())


# ---- Every class of experts that has the interface ----


SIZES = {
    "hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 32, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
# Their configurations alone do not say the sizes of one module.
LEFT_OUT = {"Ernie4_5_VLMoeMoeExperts"}


def _classes():
    for file in sorted(pathlib.Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        for name in re.findall(r"^@use_experts_implementation[^\n]*\nclass (\w+)", file.read_text(), re.MULTILINE):
            if name not in LEFT_OUT:
                yield pytest.param(f"transformers.models.{file.parent.name}.{file.stem}", name, id=name)


def _made_small(module, cls):
    """An object of the class, from the module's first configuration that serves it."""
    models = (m for _, m in inspect.getmembers(module, inspect.isclass) if issubclass(m, PreTrainedModel))
    for config_class in dict.fromkeys(m.config_class for m in models if m.__module__ == module.__name__):
        if config_class is None:
            continue
        config = config_class()
        for each in (config, config.get_text_config()):
            for name, value in SIZES.items():
                if hasattr(each, name):
                    setattr(each, name, value)
            try:
                return cls(each)
            except (AttributeError, TypeError):
                continue
    raise AssertionError(f"no configuration of {module.__name__} makes {cls.__name__}")


@pytest.mark.parametrize(("module", "name"), list(_classes()))
def test_every_class_of_experts(module, name):
    module = importlib.import_module(module)
    experts = _made_small(module, getattr(module, name)).to(torch.bfloat16).eval().to(DEVICE)
    for each in experts.parameters():
        each.normal_(std=0.2)
    up = experts.gate_up_proj if experts.has_gate else experts.up_proj
    hidden = up.shape[1] if experts.is_transposed else up.shape[2]
    x = torch.randn(6, hidden, device=DEVICE).bfloat16()
    ids = torch.stack([torch.randperm(experts.num_experts)[:2] for _ in range(6)]).to(DEVICE)
    weights = torch.rand(6, 2, device=DEVICE).bfloat16()
    results = {}
    for implementation in ("eager", "batched_mm", "grouped_mm", "moxie"):
        experts.config._experts_implementation = implementation
        results[implementation] = experts(x, ids, weights)
    for implementation, result in results.items():
        assert result.dtype == torch.bfloat16, implementation
        assert_same_logits(result, results["eager"])


def test_there_are_many_classes():
    assert len(list(_classes())) >= 60


# ---- Every model whose experts have it ----


# Sizes of configurations that have these fields.
TINY = COMMON | SIZES | {
    "moe_k": 2, "moe_topk": 2, "top_k_experts": 2, "n_shared_experts": 1, "moe_num_shared_experts": 1, "head_dim": 16,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "shared_expert_intermediate_size": 32, "shared_intermediate_size": 32, "sliding_window": 16,
    "moe_shared_expert_intermediate_size": 32, "mamba_d_state": 16, "mamba_dt_rank": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "index_n_heads": 2,
    "index_head_dim": 16, "index_topk": 8, "router_hidden_size": 16, "num_dense_layers": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "depth": 1,
    "num_key_value_heads": 4, "num_heads": 4, "out_hidden_size": 64, "embed_dim": 64, "patch_size": 4, "image_size": 16,
    "head_dim": 16, "num_layers": 1, "d_model": 64, "encoder_layers": 1, "encoder_ffn_dim": 32, "mlp_ratio": 1.0,
    "encoder_attention_heads": 4, "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
# What these do not say, by models' modules.
BOTH, LATENT = ["linear_attention", "full_attention"], {"num_key_value_heads": 4}
ALSO = {
    "axk1": LATENT, "axk2": LATENT, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "deepseek_v32": LATENT,
    "dots3_note": LATENT, "glm4_moe_lite": LATENT, "glm_moe_dsa": LATENT, "mistral4": LATENT, "mistral_large4": LATENT,
    "unlimited_ocr": LATENT,
    "bailing_hybrid": LATENT | {"layer_types": BOTH},
    "beam": {"mlp_layer_types": ["dense", "sparse"]},
    "flint": {"mlp_only_layers": [0]},
    "gemma4": {"enable_moe_block": True, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16,
               "global_head_dim": 16},
    "glm4v_moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1],
                                      "partial_rotary_factor": 0.5}},
    "granitemoehybrid": {"layer_types": BOTH, "mamba_n_heads": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "kimi_linear": LATENT | {"layer_types": BOTH, "mlp_layer_types": ["sparse"] * 2, "linear_head_dim": 16,
                             "linear_num_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16},
    "qwen3_5_moe": {"layer_types": BOTH},
    "qwen3_next": {"layer_types": BOTH},
    "qwen4_exp": {"layer_types": ["linear_attention", "indexed_attention"], "hc_lowrank": 16, "indexer_n_heads": 2,
                  "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 2},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# Models that are made of more than sizes, or compute no logits of tokens alone.
OTHER_MODELS = {
    "deepseek_ocr2", "diffusion_gemma", "ernie4_5_vl_moe", "glm5_next", "muse_spark", "openai_privacy_filter",
}  # fmt: skip


def _models():
    for name in dict.fromkeys(each.values[0] for each in _classes()):
        folder, file = name.split(".")[2:]
        text = (pathlib.Path(transformers.__file__).parent / "models" / folder / f"{file}.py").read_text()
        found = re.findall(r"^class (\w+ForCausalLM)\b", text, re.MULTILINE)
        found = found or re.findall(r"^class (\w+(?<!Model)ForConditionalGeneration)\b", text, re.MULTILINE)[:1]
        for each in found:
            if folder not in OTHER_MODELS and each.removesuffix("ForCausalLM") not in MODELS:
                yield pytest.param(name, folder, each, id=each)


def _tiny_configuration(cls, also):
    """The configuration with those of TINY and `also` that it has, and the same of those within it."""
    fields = {name for each in cls.__mro__ for name in vars(each).get("__annotations__", {})}
    sizes = TINY | also if not re.search("Vision|Audio|Encoder", cls.__name__) else VISION
    values = {name: value for name, value in sizes.items() if name in fields or name == "global_head_dim"}
    for name, kind in cls.sub_configs.items():
        inner = type(getattr(cls(), name)) if kind.__name__ == "AutoConfig" else kind
        if inner is not type(None):
            values[name] = _tiny_configuration(inner, also)
    return cls(**values)


def _routed_as(model, chosen):
    """The logits of a call. chosen: the experts and weights of each layer, which are noted where there are none, and
    else take the place of what this call would choose: where a token stands between two experts plays no part."""
    noted = []

    def hook(_, arguments):
        noted.append(arguments[1:])
        return (arguments[0], *(chosen[len(noted) - 1] if chosen else arguments[1:]))

    hooks = [each.register_forward_pre_hook(hook) for each in model.modules() if hasattr(each, "is_transposed")]
    logits = model(tokens()).logits
    for each in hooks:
        each.remove()
    assert noted
    return logits, noted


@pytest.mark.parametrize(("module", "folder", "name"), list(_models()))
def test_every_model(module, folder, name):
    torch.manual_seed(2)
    cls = getattr(importlib.import_module(module), name)
    config = _tiny_configuration(cls.config_class, ALSO.get(folder, {}))
    model = cls._from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval().to(DEVICE)
    for each, value in model.named_parameters():
        if value.dim() > 1:
            value.normal_(std=0.15)
        if any(part in each for part in model._keep_in_fp32_modules_strict or ()):
            value.data = value.data.float()
    model.set_experts_implementation("eager")
    expected, chosen = _routed_as(model, [])
    model.set_experts_implementation("moxie")
    assert_same_logits(_routed_as(model, chosen)[0], expected)
    assert all(hasattr(each, "_moxie_gate") for each in model.modules() if hasattr(each, "is_transposed"))

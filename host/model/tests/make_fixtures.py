#!/usr/bin/env python3
"""Makes tiny random checkpoints of odd shapes with the logits and greedy continuations that HF transformers computes on exactly
the stored weights, in float32. The committed ones under tests/data/odd-* were made with transformers 5.24.0 and torch 2.x:

    python3 -m venv venv && venv/bin/pip install transformers==5.24.0 torch safetensors
    venv/bin/python host/model/tests/make_fixtures.py OUT_DIR [NAME..]

Each directory holds config.json, model.safetensors and expected.safetensors (`ids` i64 [48], `logits` f32 [48, vocab],
`greedy` i64 [12], and `logits_kv_bf16` and `logits_kv_fp8`: the same computation with what the KV cache holds rounded as Millrace
rounds it), as tests/fixtures.rs reads them.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, cache_utils

TOKENS, GREEDY, BLOCK, GROUP = 48, 12, 128, 32

GQA = dict(vocab_size=96, hidden_size=72, intermediate_size=104, num_hidden_layers=2, num_attention_heads=6,
           num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1,
           eos_token_id=2)
MLA = dict(vocab_size=96, hidden_size=72, intermediate_size=104, moe_intermediate_size=40, num_attention_heads=3,
           num_key_value_heads=3, n_shared_experts=1, n_routed_experts=6, num_experts_per_tok=2, kv_lora_rank=40, q_lora_rank=56,
           qk_rope_head_dim=8, qk_nope_head_dim=20, v_head_dim=24, max_position_embeddings=256, tie_word_embeddings=False,
           norm_topk_prob=True, pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)

# name: (model_type, config, format)
CASES = {
    "odd-llama": ("llama", GQA | dict(head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                      rope_parameters=dict(rope_theta=1000.0, rope_type="linear", factor=2.0)), "bf16"),
    "odd-qwen2": ("qwen2", GQA | dict(num_key_value_heads=6, rope_parameters=dict(rope_theta=5000.0, rope_type="default")), "bf16"),
    "odd-qwen3": ("qwen3", GQA | dict(head_dim=20, attention_bias=True, rope_parameters=dict(rope_theta=1000.0) | YARN), "bf16"),
    "odd-qwen3_moe": ("qwen3_moe", GQA | dict(num_hidden_layers=3, head_dim=16, num_experts=5, num_experts_per_tok=2,
                                              moe_intermediate_size=40, norm_topk_prob=False, mlp_only_layers=[1],
                                              rope_parameters=dict(rope_theta=1000.0, rope_type="default")), "bf16"),
    "odd-glm4_moe": ("glm4_moe", GQA | dict(num_hidden_layers=3, head_dim=24, attention_bias=True, use_qk_norm=False,
                                            n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
                                            n_shared_experts=2, first_k_dense_replace=1, n_group=1, topk_group=1,
                                            routed_scaling_factor=1.5, norm_topk_prob=True,
                                            rope_parameters=dict(rope_theta=1000.0, rope_type="default",
                                                                 partial_rotary_factor=0.25)), "bf16"),
    "odd-deepseek_v3": ("deepseek_v3", MLA | dict(num_hidden_layers=3, q_lora_rank=None, n_group=3, topk_group=2,
                                                  first_k_dense_replace=2, routed_scaling_factor=2.5, attention_bias=True,
                                                  rope_parameters=dict(rope_theta=1000.0, mscale=0.7, mscale_all_dim=1.2) | YARN),
                        "fp8"),
    "odd-glm_5_2": ("glm_moe_dsa", MLA | dict(num_hidden_layers=6, n_group=1, topk_group=1, routed_scaling_factor=2.5,
                                              index_topk=27, index_head_dim=12, index_n_heads=19, first_k_dense_replace=2,
                                              indexer_types=["full", "shared", "full", "shared", "shared", "full"],
                                              rope_parameters=dict(rope_theta=1000.0, rope_type="default")), "fp8"),
}


# Where the seed that the name gives leaves a cached value so near to a rounding boundary that float noise decides its side.
SEEDS = {"odd-glm_5_2": 7}


def to_bf16(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).float()


def to_e4m3(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def to_fp8_per_token(values: torch.Tensor) -> torch.Tensor:
    """A BF16 scale per token and head: the largest magnitude / 448."""
    scales = to_bf16(values.abs().amax(-1, keepdim=True) / 448)
    return torch.where(scales > 0, to_e4m3(values / scales) * scales, torch.zeros_like(values))


class RoundedCache:
    """While it is open, caches hold rounded keys and values, or latents (FP8: scale 1), and index keys (never below BF16)."""

    def __init__(self, values, index_keys):
        self.values, self.index_keys = values, index_keys

    def __enter__(self):
        self.saved = cache_utils.Cache.update, cache_utils.Cache.update_indexer
        update, update_indexer = self.saved
        cache_utils.Cache.update = lambda cache, k, v, *args, **named: update(cache, self.values(k), self.values(v), *args, **named)
        cache_utils.Cache.update_indexer = lambda cache, k, *args: update_indexer(cache, self.index_keys(k), *args)

    def __exit__(self, *_):
        cache_utils.Cache.update, cache_utils.Cache.update_indexer = self.saved


def quantized(name: str, weight: torch.Tensor, form: str) -> bool:
    kept = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "weights_proj", "bias")
    return form != "bf16" and weight.ndim == 2 and not any(part in name for part in kept)


def to_fp8(weight: torch.Tensor):
    """Codes, scales per 128x128 block, and the exact values that they stand for."""
    rows, cols = weight.shape
    grid = (-(-rows // BLOCK), -(-cols // BLOCK))
    scales = torch.zeros(grid)
    codes, values = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn), torch.zeros(weight.shape)
    for i in range(grid[0]):
        for j in range(grid[1]):
            at = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            values[at] = codes[at].float() * scales[i, j]
    return codes, scales, values


def make(out: Path, name: str) -> None:
    model_type, values, form = CASES[name]
    torch.manual_seed(SEEDS.get(name, sum(name.encode())))
    config = AutoConfig.for_model(model_type, **values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, weight in list(model.named_parameters()) + list(model.named_buffers()):
            if "norm" in key and key.endswith("weight"):
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            elif "inv_freq" not in key:
                weight.copy_((0.3 if weight.ndim == 1 else 0.12) * torch.randn_like(weight))
    folder = out / name
    model.save_pretrained(folder, safe_serialization=True)
    stored, exact = {}, {}
    for key, weight in load_file(folder / "model.safetensors").items():
        weight = weight.float()
        if quantized(key, weight, form):
            stored[key], stored[f"{key}_scale_inv"], exact[key] = to_fp8(weight)
        elif "e_score_correction_bias" in key:
            stored[key] = exact[key] = weight
        else:
            stored[key] = weight.to(torch.bfloat16)
            exact[key] = stored[key].float()
    # The reference runs on what is stored, read back as any checkpoint is.
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(3, values["vocab_size"], (1, TOKENS))
    with torch.no_grad():
        logits = model(ids).logits[0]
        with RoundedCache(to_bf16, to_bf16):
            logits_bf16 = model(ids).logits[0]
        with RoundedCache(to_e4m3 if "kv_lora_rank" in values else to_fp8_per_token, to_bf16):
            logits_fp8 = model(ids).logits[0]
        text = ids
        for _ in range(GREEDY):
            text = torch.cat([text, model(text).logits[0, -1].argmax().view(1, 1)], dim=1)
    save_file({k: v.contiguous() for k, v in stored.items()}, folder / "model.safetensors")
    expected = {"ids": ids[0], "logits": logits, "greedy": text[0, TOKENS:], "logits_kv_bf16": logits_bf16,
                "logits_kv_fp8": logits_fp8}
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")
    said = json.loads((folder / "config.json").read_text())
    if form == "fp8":
        said["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                       "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").unlink(missing_ok=True)
    distances = [f"{float((other - logits).norm() / logits.norm()):.1e}" for other in (logits_bf16, logits_fp8)]
    print(name, "KV in BF16 and FP8 moves logits by", distances, sum(file.stat().st_size for file in folder.iterdir()), "bytes, logits up to", float(logits.abs().max()))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        make(out, name)

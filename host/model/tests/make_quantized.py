#!/usr/bin/env python3
"""Makes tiny random Llamas quantized by compressed-tensors itself, and by AutoFP8's layout, with the logits and greedy
continuations that HF transformers computes in float32 on exactly the stored values: code * scale, or (code - zero) * scale.
The committed ones under tests/data/formats were made with compressed-tensors 0.20.1, transformers 5.24.0 and torch 2.15.0:

    python3 -m venv venv && venv/bin/pip install compressed-tensors==0.20.1 transformers==5.24.0 torch safetensors
    venv/bin/python host/model/tests/make_quantized.py OUT_DIR [NAME..]

Codes, scales and zero points are found and packed by that package (calculate_qparams, BaseCompressor.compress), and unpacked
again by it for the expected values. Each directory holds config.json, model.safetensors and expected.safetensors: `ids` i64
[48], `logits` f32 [48, vocab], `greedy` i64 [12], and the last nine rows of two quantized weights, f32, under their names.
"""

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig

TOKENS, GREEDY, ROWS = 48, 12, 9

SHAPE = dict(vocab_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
             rope_parameters=dict(rope_theta=1000.0, rope_type="default"))
SMALL = SHAPE | dict(hidden_size=64, intermediate_size=96, head_dim=16)
ODD = SHAPE | dict(hidden_size=36, intermediate_size=60, head_dim=10)
WIDE = SHAPE | dict(hidden_size=128, intermediate_size=128, head_dim=24, tie_word_embeddings=True)


def int4(**rest):
    return QuantizationArgs(num_bits=4, type="int", **rest)


def fp8(strategy, **rest):
    return QuantizationArgs(num_bits=8, type="float", strategy=strategy, **rest)


def group(targets, weights, activations=None, **rest):
    return QuantizationScheme(targets=targets, weights=weights, input_activations=activations, **rest)


PACK, FLOAT = "pack-quantized", "float-quantized"
DYNAMIC = fp8("token", dynamic=True)
# name: (shape, dtype, format, groups, ignore)
CASES = {
    "int4-zero-point": (SMALL, "bfloat16", PACK, [group(["Linear"], int4(strategy="group", group_size=32, symmetric=False))],
                        ["lm_head"]),
    "int4-channel": (ODD, "float16", PACK, [group(["Linear"], int4(strategy="channel", symmetric=False))], ["lm_head"]),
    "int4-channel-f32": (ODD, "float32", PACK, [group(["Linear"], int4(group_size=-1))], ["lm_head"]),
    "fp8-channel": (ODD, "bfloat16", FLOAT, [group(["Linear"], fp8("channel"), DYNAMIC)], ["lm_head"]),
    "fp8-tensor": (ODD, "float16", FLOAT, [group(["Linear"], fp8("tensor"), fp8("tensor"))], ["re:.*lm_head"]),
    "mixed": (WIDE, "bfloat16", "mixed-precision", [
        group([r"re:.*self_attn\.(q|k|v|o)_proj"], fp8("block", block_structure=[128, 128]), fp8("group", group_size=128, dynamic=True),
              format=FLOAT),
        group(["Linear"], int4(strategy="group", group_size=64), format=PACK),
        group(["model.layers.0.mlp.down_proj"], int4(strategy="group", group_size=128, symmetric=False), format=PACK),
    ], ["lm_head", "model.layers.0.self_attn.v_proj"]),
    # Not compressed-tensors: one F32 scale per tensor, `ignored_layers`, no block size.
    "autofp8": (ODD, "bfloat16", None, [group(["Linear"], fp8("tensor"))], ["lm_head"]),
}


def scheme_of(module, groups, ignore):
    """As compressed-tensors chooses: names before expressions before classes."""
    if any(match_name(module, entry) for entry in ignore):
        return None
    tiers = [lambda t: t == module, lambda t: t.startswith("re:") and match_name(module, t), lambda t: t == "Linear"]
    return next((g for tier in tiers for g in groups if any(tier(t) for t in g.targets)), None)


def scales(weight, args):
    """Scale and zero point of each group, as its min-max observer finds them."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        blocks, shape = weight.reshape(1, -1), (1,)
    elif strategy == "channel":
        blocks, shape = weight, (weight.shape[0], 1)
    elif strategy == "group":
        blocks = weight.reshape(weight.shape[0], -1, args.group_size)
        shape = blocks.shape[:2]
    else:
        size = args.block_structure
        grid = [-(-n // s) for n, s in zip(weight.shape, size)]
        padded = torch.zeros(grid[0] * size[0], grid[1] * size[1], dtype=weight.dtype)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        blocks = padded.reshape(grid[0], size[0], grid[1], size[1]).transpose(1, 2).reshape(*grid, -1)
        shape = tuple(grid)
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    return scale.reshape(shape), zero.reshape(shape)


def compressed(weight, scheme, fmt):
    """What is stored for a weight, and the exact values that it stands for."""
    scale, zero = scales(weight, scheme.weights)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype), "weight_zero_point": zero}
    stored = BaseCompressor.get_value_from_registry(fmt).compress(state, scheme)
    scale = stored["weight_scale"].float()
    if fmt == FLOAT:
        if scale.ndim == 2 and scale.shape[1] * scale.shape[0] > 1 and scale.shape[0] != weight.shape[0]:
            scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
        return stored, stored["weight"].float() * scale
    codes = unpack_from_int32(stored["weight_packed"], 4, weight.shape).float()
    if "weight_zero_point" in stored:
        shape = torch.Size((weight.shape[0], scale.shape[1]))
        zeros = unpack_from_int32(stored["weight_zero_point"], 4, shape, packed_dim=0).float()
        codes = codes - zeros.repeat_interleave(weight.shape[1] // scale.shape[1], 1)
    return stored, codes * scale.repeat_interleave(weight.shape[1] // scale.shape[1], 1)


def make(out, name):
    shape, dtype, fmt, groups, ignore = CASES[name]
    dtype = getattr(torch, dtype)
    torch.manual_seed(sum(name.encode()))
    folder = out / name
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape), dtype=torch.float32).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            # Off centre, so that zero points are not all the same.
            weight.copy_(1 + 0.2 * torch.randn_like(weight) if "norm" in key else 0.12 * torch.randn_like(weight) + 0.03)
    model.save_pretrained(folder)
    stored, exact, quantized = {}, {}, {}
    for key, weight in load_file(folder / "model.safetensors").items():
        module = key.removesuffix(".weight")
        scheme = scheme_of(module, groups, ignore) if "proj" in key or key == "lm_head.weight" else None
        weight = weight.to(dtype)
        if scheme is None:
            stored[key], exact[key] = weight, weight.float()
            continue
        tensors, exact[key] = compressed(weight, scheme, scheme.format or fmt or FLOAT)
        if "k_proj" in key or "down_proj" in key:
            quantized[key] = exact[key][-ROWS:].contiguous()
        if fmt is None:
            tensors["weight_scale"] = tensors["weight_scale"].float().reshape(())
        if scheme.input_activations is not None and not scheme.input_activations.dynamic or fmt is None:
            tensors["input_scale"] = torch.tensor([0.02], dtype=torch.float32)
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in tensors.items()}
    # The reference runs on what is stored, read back as any checkpoint is.
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(3, shape["vocab_size"], (1, TOKENS))
    with torch.no_grad():
        logits = model(ids).logits[0]
        text = ids
        for _ in range(GREEDY):
            text = torch.cat([text, model(text).logits[0, -1].argmax().view(1, 1)], dim=1)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    expected = {"ids": ids[0], "logits": logits.contiguous(), "greedy": text[0, TOKENS:].contiguous()}
    save_file(expected | quantized, folder / "expected.safetensors")
    said = json.loads((folder / "config.json").read_text())
    if fmt is None:
        said["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ignore}
    else:
        config = QuantizationConfig(config_groups={f"group_{i}": g for i, g in enumerate(groups)}, format=fmt, ignore=ignore,
                                    quantization_status="compressed")
        said["quantization_config"] = json.loads(config.model_dump_json())
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").unlink(missing_ok=True)
    print(name, sum(file.stat().st_size for file in folder.iterdir()), "bytes, logits up to", float(logits.abs().max()))
    # Of mixed formats that release dequantizes every group as if it were of one.
    if fmt not in (None, "mixed-precision"):
        dense = CompressedTensorsConfig(dequantize=True)
        other = AutoModelForCausalLM.from_pretrained(folder, quantization_config=dense, attn_implementation="eager").eval()
        with torch.no_grad():
            theirs = other(ids).logits[0].float()
        # In 16-bit floats: near, not equal.
        print("  as transformers loads it:", float((theirs - logits).norm() / logits.norm()))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        make(out, name)

#!/usr/bin/env python3
"""Makes tiny checkpoints, quantizes them with `millrace quantize`, loads the results with transformers and compares what comes of
it with what the report says under `loads_elsewhere`: no more and no less must fail.

    pip install torch transformers==5.24.0 compressed-tensors==0.20.1 accelerate      (CPU builds will do)
    tests/quantize/loads_elsewhere.py [--millrace PATH] [CASE..]

Three ways of loading: as `from_pretrained` does it without a GPU; with `dequantize=True`; for hub FP8 also as with an FP8 GPU, whose
presence is pretended, so that weights are loaded as on one but not run. Right is what equals the format's definition bit for bit.
Not part of tests/run.sh: the packages take gigabytes. host/model/src/quantize/elsewhere.rs holds the rules that were found so.
"""
import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import torch
from check_with_transformers import definition, loaded, read
from loguru import logger
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config, logging

GQA = dict(vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
           head_dim=64, tie_word_embeddings=False)
MLA = dict(vocab_size=64, hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
           num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, kv_lora_rank=64, q_lora_rank=96,
           qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, n_group=1, topk_group=1, first_k_dense_replace=1)
MOE = GQA | dict(num_experts=4, num_experts_per_tok=2)


def moe(size, **rest):
    return "qwen3_moe", MOE | dict(moe_intermediate_size=size) | rest


# name: source (type and config), then the arguments of one or two quantizations.
CASES = {
    **{f"fp8-{size}": (("llama", GQA | dict(intermediate_size=size)), ["fp8"]) for size in (64, 128, 192, 257, 320, 384)},
    "fp8-moe": (moe(256), ["fp8"]),
    "fp8-moe-odd": (moe(192), ["fp8"]),
    "fp8-moe-odd-dense": (moe(256, head_dim=80), ["fp8"]),
    "fp8-moe-small-odd-dense": (moe(64, hidden_size=128, head_dim=80), ["fp8"]),
    "fp8-float-experts": (moe(256), ["fp8", "--keep", "experts"]),
    "fp8-float-experts-odd": (moe(192, head_dim=80), ["fp8", "--keep", "experts"]),
    "fp8-float-experts-of-a-layer": (moe(256), ["fp8", "--keep", r"layers\.0\.mlp"]),
    "fp8-float-down": (moe(256), ["fp8", "--keep", "down_proj"]),
    "fp8-float-up": (moe(256), ["fp8", "--keep", "up_proj"]),
    "fp8-float-attention": (moe(256), ["fp8", "--keep", "self_attn"]),
    "fp8-mla": (("deepseek_v3", MLA), ["fp8"]),
    "fp8-mla-large-experts": (("deepseek_v3", MLA | dict(moe_intermediate_size=256)), ["fp8"]),
    "int4": (("llama", GQA | dict(intermediate_size=192)), ["int4", "--group", "64"]),
    "int4-moe": (moe(64), ["int4"]),
    "int4-moe-kimi": (moe(64), ["int4", "--preset", "kimi"]),
    "int4-float-experts": (moe(64), ["int4", "--keep", "experts"]),
    "int4-float-experts-by-group": (moe(96), ["int4", "--group", "64"]),
    "int4-float-experts-of-a-layer": (moe(64), ["int4", "--keep", r"layers\.0\.mlp"]),
    "int4-float-down": (moe(64), ["int4", "--keep", "down_proj"]),
    "int4-float-q": (moe(64), ["int4", "--keep", "q_proj"]),
    "int4-float-attention-of-a-layer": (moe(64), ["int4", "--keep", r"layers\.0\.self_attn"]),
    "int4-mla": (("deepseek_v3", MLA), ["int4"]),
    "int4-mla-float-experts": (("deepseek_v3", MLA), ["int4", "--keep", r"mlp\.experts"]),
    "mixed-dense": (("llama", GQA), ["fp8"], ["int4", "--keep", "self_attn"]),
    "mixed-dense-odd": (("llama", GQA | dict(hidden_size=192)), ["fp8"], ["int4", "--keep", "self_attn"]),
    "mixed-moe-kimi": (moe(256), ["fp8"], ["int4", "--preset", "kimi"]),
    "mixed-moe-fp8-experts": (moe(256), ["fp8"], ["int4", "--keep", "experts"]),
    "mixed-moe-small-fp8-experts": (moe(64, hidden_size=128), ["fp8"], ["int4", "--keep", "experts"]),
    "mixed-moe-fp8-experts-of-a-layer": (moe(256), ["fp8"], ["int4", "--keep", r"layers\.0\.mlp"]),
    "mixed-moe-float-experts": (moe(256), ["fp8", "--keep", "experts"], ["int4", "--keep", "self_attn.q"]),
    "mixed-mla-glm": (("deepseek_v3", MLA), ["fp8"], ["int4", "--preset", "glm"]),
    "mixed-mla-shared": (("deepseek_v3", MLA), ["fp8"], ["int4", "--keep", "self_attn", r"mlp\.experts"]),
}  # fmt: skip


def quantization(directory):
    return json.loads((directory / "config.json").read_text())["quantization_config"]


def load(directory, **how):
    """A model that has run once, or why there is none. Keys that are missing are random there."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, **how)
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    return model.eval(), f"{len(info['missing_keys'])} random" if info["missing_keys"] else None


def values(directory, dequantize):
    """What is wrong without a GPU; None where every value is right and the model runs."""
    is_fp8 = quantization(directory)["quant_method"] == "fp8"
    config = FineGrainedFP8Config(dequantize=True) if is_fp8 else CompressedTensorsConfig(dequantize=True)
    model, wrong = load(directory, dtype=torch.float32, **({"quantization_config": config} if dequantize else {}))
    if wrong:
        return wrong
    try:
        # What is not dequantized when it is loaded is when it first runs.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            finite = torch.isfinite(model(torch.arange(16)[None]).logits).all()
    except Exception as error:
        return f"does not run: {error}"
    parameters, different = dict(model.named_parameters()), []
    for name, (value, is_int4) in definition(read(directory)).items():
        found = loaded(parameters, name)
        # INT4 comes in the type of its scales, or in that of the model.
        allowed = [value, value.to(torch.bfloat16).float()] if is_int4 else [value]
        if found is None or not any(torch.equal(found.float(), wanted) for wanted in allowed):
            different.append(name)
    return f"{len(different)} differ, e.g. {different[0]}" if different else None if finite else "logits are not finite"


def codes(directory):
    """What is wrong as with an FP8 GPU: codes, scales and floats must be what the file holds."""
    with mock.patch("torch.cuda.is_available", lambda: True), mock.patch("torch.cuda.get_device_capability", lambda *_: (9, 0)):
        model, wrong = load(directory)
    if wrong:
        return wrong
    parameters, different = dict(model.named_parameters()) | dict(model.named_buffers()), []
    for name, stored in load_file(directory / "model.safetensors").items():
        found = parameters.get(name) if name.endswith("_scale_inv") else loaded(parameters, name)
        # Scales of experts are one tensor with an order of their own.
        if found is None and ".experts." in name and name.endswith("_scale_inv"):
            continue
        if found is None or not torch.equal(found.float(), stored.float()):
            different.append(name)
    return f"{len(different)} differ, e.g. {different[0]}" if different else None


def said(notes):
    """The ways of loading that a report's notes say fail."""
    ways = set()
    for why in (note["why"] for note in notes):
        if "without an FP8 GPU" in why or "reads the experts" in why:
            ways |= {"plain", "dequantize"}
        elif "but not with dequantize=True" in why:
            ways.add("dequantize")
        elif "with an FP8 GPU" in why:
            ways.add("GPU")
        else:
            sys.exit(f"this script does not know the note: {why}")
    return ways


def try_case(name, millrace, work):
    (kind, config), *runs = CASES[name]
    source = work / name
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config), dtype=torch.bfloat16)
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(source)
    for number, arguments in enumerate(runs):
        result = work / f"{name}-{number}"
        command = [millrace, "quantize", source, result, "--threads", "1", "--json", "--weights", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        source = result
    notes = json.loads(done.stdout)["loads_elsewhere"]
    found = {"plain": values(source, False), "dequantize": values(source, True)}
    if quantization(source)["quant_method"] == "fp8":
        found["GPU"] = codes(source)
    failing = {way for way, wrong in found.items() if wrong}
    agrees = failing == said(notes)
    print(f"{'ok ' if agrees else 'BAD'} {name}: {quantization(source).get('format', 'hub fp8')}, fails {found if failing else 'nowhere'}")
    if not agrees:
        print(f"    the report: {notes}")
    return agrees


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", default="target/release/millrace", help="the binary")
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    args = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    logger.remove()
    with tempfile.TemporaryDirectory() as work:
        results = [try_case(name, args.millrace, pathlib.Path(work)) for name in args.cases]
    print(f"{sum(results)} of {len(results)} agree")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Loads what `millrace quantize` wrote with transformers (INT4: with compressed-tensors) and compares every weight, bit for bit,
with the format's definition; then runs the model once.

    pip install torch transformers compressed-tensors accelerate      (CPU builds will do)
    tests/quantize/check_with_transformers.py DIRECTORY [--logits expected.safetensors]

Not part of tests/run.sh: the packages take gigabytes. host/model/tests/quantize checks the same definitions without them.
loads_elsewhere.py beside it has the cases in which transformers loads something else. INT4 values are rounded to BF16, the type of
the scales, so definitions are rounded likewise before they are compared.
"""
import argparse
import json
import pathlib
import re

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config


def read(directory):
    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


def definition(tensors):
    """Value of every weight, in float32, and whether it is INT4."""
    values = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight_packed"):
            name = name.removesuffix("_packed")
            rows, cols = tensors[f"{name}_shape"].tolist()
            scale = tensors[f"{name}_scale"].float()
            words = tensor.to(torch.int64) & 0xFFFFFFFF
            nibbles = torch.stack([words >> (4 * i) & 0xF for i in range(8)], -1).reshape(rows, cols)
            values[name] = ((nibbles - 8).float() * scale.repeat_interleave(cols // scale.shape[1], 1), True)
        elif tensor.dtype == torch.float8_e4m3fn:
            scale = tensors.get(f"{name}_scale_inv", tensors.get(f"{name}_scale")).float()
            rows, cols = tensor.shape
            scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
            values[name] = (tensor.float() * scale, False)
        elif name.endswith((".weight", ".bias")):
            values[name] = (tensor.float(), False)
    return values


def loaded(parameters, name):
    """The loaded values of a checkpoint's weight; experts of a layer are one tensor in transformers."""
    if name in parameters:
        return parameters[name]
    part = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
    if not part:
        return None
    experts, expert, projection = part[1], int(part[2]), part[3]
    if projection == "down":
        return parameters[f"{experts}.down_proj"][expert]
    return parameters[f"{experts}.gate_up_proj"][expert].chunk(2, 0)[("gate", "up").index(projection)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--logits", type=pathlib.Path, help="a fixture's expected.safetensors, to say how far the logits are")
    args = parser.parse_args()

    config = json.loads((args.directory / "config.json").read_text())
    section = config.get("quantization_config") or config["text_config"]["quantization_config"]
    is_fp8 = section["quant_method"] == "fp8"
    how = FineGrainedFP8Config(dequantize=True) if is_fp8 else CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(args.directory, dtype=torch.float32, quantization_config=how).eval()
    parameters = dict(model.named_parameters())

    quantized = plain = 0
    missing = []
    for name, (value, is_int4) in definition(read(args.directory)).items():
        found = loaded(parameters, name)
        if found is None:
            missing.append(name)
            continue
        wanted = value.to(torch.bfloat16).float() if is_int4 else value
        assert found.shape == wanted.shape, f"{name}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
        different = int((found.float() != wanted).sum())
        assert different == 0, f"{name}: {different} of {wanted.numel()} values differ, e.g. {(found - wanted).abs().max()}"
        quantized, plain = quantized + is_int4, plain + (not is_int4)
    print(f"{section['quant_method']}: {quantized} INT4 and {plain} other tensors loaded, equal bit for bit; not in the model: {missing}")

    ids = torch.arange(16)[None]
    reference = None
    if args.logits:
        with safe_open(args.logits, "pt") as file:
            ids, reference = file.get_tensor("ids")[None], file.get_tensor("logits")
    with torch.no_grad():
        logits = model(ids).logits[0].float()
    assert torch.isfinite(logits).all()
    print(f"logits {tuple(logits.shape)} are finite")
    if reference is not None:
        print(f"distance to the source's: {((logits - reference).norm() / reference.norm()).item():.4f}")


if __name__ == "__main__":
    main()

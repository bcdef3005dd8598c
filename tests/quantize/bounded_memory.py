#!/usr/bin/env python3
"""Quantizes a synthetic checkpoint of 2 GB under a memory limit of 512 MB and says what was used.

    tests/quantize/bounded_memory.py [--millrace PATH] [--gib 2] [--limit-mib 512] [--weights int4|fp8] [--directory DIR]

What is limited: RLIMIT_DATA, which the kernel enforces on all memory that a process allocates for itself (heap, stacks, private
mappings that can be written), without privileges. Mappings of files are not counted by it: their pages belong to the page cache and
can be taken back at any time. So the peak of the resident set, pages of mapped files included, is measured too, and must be
under the same limit. (RLIMIT_AS would count the addresses of the mapped checkpoint, which is no memory.)

The checkpoint is a Llama of random BF16 weights in shards, each matrix made of one block of noise at changing offsets, so that
making it takes seconds.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time

HIDDEN, INTERMEDIATE, VOCAB = 2048, 8192, 4096
PROJECTIONS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 4, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 4, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}


def noise(count):
    """BF16 numbers of random mantissas and signs between 2^-9 and 2^-5 in magnitude."""
    chance = random.Random(1)
    return b"".join(struct.pack("<H", chance.getrandbits(1) << 15 | chance.randint(118, 121) << 7 | chance.getrandbits(7)) for _ in range(count))


def write_shard(path, tensors, block):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        end = offset + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left, turn = offset, 0
        while left:
            start = turn * 4098 % (len(block) // 2)
            piece = block[start : start + min(left, len(block) // 2)]
            file.write(piece)
            left, turn = left - len(piece), turn + 1


def write_checkpoint(directory, gib):
    layer_bytes = 2 * sum(rows * cols for rows, cols in PROJECTIONS.values())
    layers = max(1, round(gib * 2**30 / layer_bytes))
    block = noise(1 << 19) * 8
    names = {}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors = {f"{at}{name}.weight": list(shape) for name, shape in PROJECTIONS.items()}
        tensors |= {f"{at}input_layernorm.weight": [HIDDEN], f"{at}post_attention_layernorm.weight": [HIDDEN]}
        if layer == 0:
            tensors |= {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
        shard = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        write_shard(directory / shard, tensors, block)
        names |= {name: shard for name in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", default="target/release/millrace", help="the binary")
    parser.add_argument("--gib", type=float, default=2, help="size of the checkpoint")
    parser.add_argument("--limit-mib", type=int, default=512)
    parser.add_argument("--weights", default="int4", choices=["int4", "fp8"])
    parser.add_argument("--threads", default="0")
    parser.add_argument("--directory", help="where to make both checkpoints; they are removed again")
    args = parser.parse_args()

    limit = args.limit_mib << 20
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        source, destination = pathlib.Path(directory) / "source", pathlib.Path(directory) / "quantized"
        source.mkdir()
        size = write_checkpoint(source, args.gib)
        print(f"source: {size / 2**20:.0f} MiB of BF16 in {len(list(source.glob('*.safetensors')))} files")
        command = [args.millrace, "quantize", str(source), str(destination), "--weights", args.weights, "--threads", args.threads, "--json"]
        began = time.monotonic()
        done = subprocess.run(
            command, stdout=subprocess.PIPE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        )
        seconds = time.monotonic() - began
        # The largest of the children's; the only other children were none.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        if done.returncode != 0:
            sys.exit(f"failed with exit code {done.returncode} under RLIMIT_DATA of {args.limit_mib} MiB")
        report = json.loads(done.stdout)
        assert report["bytes_before"] == size
        written = sum(path.stat().st_size for path in destination.glob("*.safetensors"))
        assert report["bytes_after"] == written
        print(f"result: {written / 2**20:.0f} MiB, relative error {report['relative_error']:.4f}, {seconds:.0f} s, {os.cpu_count()} CPUs")
        print(f"limit on allocated memory: {args.limit_mib} MiB, kept; peak of the resident set: {peak / 2**20:.0f} MiB")
        if peak >= limit:
            sys.exit(f"the resident set grew beyond {args.limit_mib} MiB")


if __name__ == "__main__":
    main()

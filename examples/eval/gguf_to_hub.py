#!/usr/bin/env python3
"""Writes a GGUF file of the Llama architecture as a hub directory in BF16, as `millrace quantize` and other programs read it:

    examples/eval/gguf_to_hub.py MODEL.gguf DIRECTORY          (needs numpy)

Read are GGUF version 3, little-endian, with tensors in F32, F16, BF16, Q8_0, Q4_0 and Q4_1; everything else is refused by name.
Written are config.json and model.safetensors: the hub's names, BF16 rounded to nearest (ties to even), rows of q and k as the hub
has them (first all first halves of the rotary pairs of a head, then all second ones; GGUF's Llama has each pair side by side), no
head where the file shares it with the embedding. The tokenizer stays behind: `eval compare` takes it from the GGUF file.
Values are computed in float32 as GGUF defines them, tensor by tensor, so memory is that of the largest one.
"""
import argparse
import json
import pathlib
import struct
import sys
import tempfile

import numpy

# Values of the metadata by GGUF's number of their type: how struct reads them. 8 is a string, 9 a list.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9
# Tensor types: name, elements of a block, bytes of a block.
TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


class Refused(Exception):
    """What keeps the file from being written as a hub directory."""


class Reader:
    """A place in a GGUF file."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Refused(f"the file ends at byte {len(self.data)}, within its header; download it again")
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def number(self, kind):
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]

    def string(self):
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == LIST:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(count)]
        if kind not in SCALARS:
            raise Refused(f"a metadata value has type {kind}, which does not exist; download the file again")
        return self.number(SCALARS[kind])


class Tensor:
    def __init__(self, name, shape, kind, start):
        if kind not in TYPES:
            raise Refused(f"tensor {name} has type {kind}; read are {', '.join(name for name, _, _ in TYPES.values())}")
        self.name, self.shape, (self.kind, elements, size), self.start = name, shape, TYPES[kind], start
        if shape[-1] % elements:
            raise Refused(f"tensor {name} has rows of {shape[-1]} elements, no multiple of {elements}; download the file again")
        self.elements = int(numpy.prod(shape, dtype=object))
        self.bytes = self.elements // elements * size

    def values(self, data):
        """In float32, in the shape that the hub gives it."""
        raw = data[self.start : self.start + self.bytes]
        if len(raw) != self.bytes:
            raise Refused(f"tensor {self.name} lies outside the file; download it again")
        return decoded(self.kind, raw).reshape(self.shape)


def decoded(kind, raw):
    """GGUF's definitions. F16 times small integers is computed in float32, without rounding but for Q4_1's sum."""
    if kind == "F32":
        return raw.view("<f4")
    if kind == "F16":
        return raw.view("<f2").astype(numpy.float32)
    if kind == "BF16":
        return (raw.view("<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    size = next(size for name, _, size in TYPES.values() if name == kind)
    blocks = raw.reshape(-1, size)
    scale = blocks[:, :2].copy().view("<f2").astype(numpy.float32)
    if kind == "Q8_0":
        return scale * blocks[:, 2:].view(numpy.int8).astype(numpy.float32)
    packed = blocks[:, size - 16 :]
    # The first half of a block lies in the low bits, the second in the high ones.
    codes = numpy.concatenate([packed & 15, packed >> 4], axis=1).astype(numpy.float32)
    if kind == "Q4_0":
        return scale * (codes - 8)
    return scale * codes + blocks[:, 2:4].copy().view("<f2").astype(numpy.float32)


def read(data):
    """Metadata and tensors of a file."""
    reader = Reader(data)
    magic, version = reader.take(4), reader.number("I")
    if magic != b"GGUF" or version != 3:
        raise Refused("it is no GGUF file of version 3, little-endian; convert the model with a current tool")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    metadata = {}
    for _ in range(pairs):
        key = reader.string()
        metadata[key] = reader.value(reader.number("I"))
    found = []
    for _ in range(tensors):
        name = reader.string()
        shape = [reader.number("Q") for _ in range(reader.number("I"))][::-1]
        found.append(Tensor(name, shape, reader.number("I"), reader.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.at // alignment) * alignment
    for tensor in found:
        tensor.start += start
    return metadata, found


def configuration(metadata, tensors):
    """config.json."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise Refused(f"its architecture is {architecture}; written are files of llama")

    def value(key, otherwise=None):
        found = metadata.get(f"llama.{key}", otherwise)
        if found is None or isinstance(found, list):
            raise Refused(f"llama.{key} is {'missing' if found is None else 'a list'}; written are models whose layers are alike")
        return found

    shapes = {tensor.name: tensor.shape for tensor in tensors}
    heads = value("attention.head_count")
    head_dim = value("attention.key_length", value("embedding_length") // heads)
    for key in ["attention.value_length", "rope.dimension_count"]:
        if value(key, head_dim) != head_dim:
            raise Refused(f"llama.{key} is {value(key)} with heads of {head_dim}; written are heads that are rotated whole")
    if metadata.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in shapes:
        raise Refused("its rotary embedding is scaled, which this script does not translate; use the hub's own checkpoint")
    if "token_embd.weight" not in shapes:
        raise Refused("there is no tensor token_embd.weight; download the file again")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
    }
    for name in ["bos", "eos"]:
        if f"tokenizer.ggml.{name}_token_id" in metadata:
            config[f"{name}_token_id"] = metadata[f"tokenizer.ggml.{name}_token_id"]
    return config


def hub_name(name):
    module, _, part = name.rpartition(".")
    hub = OUTER.get(module)
    if module.startswith("blk."):
        _, layer, inner = module.split(".", 2)
        hub = INNER.get(inner) and f"model.layers.{layer}.{INNER[inner]}"
    if not hub or part not in ("weight", "bias"):
        raise Refused(f"tensor {name} has no counterpart in a Llama of the hub")
    return f"{hub}.{part}"


def in_hub_order(values, head_dim):
    """Rows of q or k with rotary pairs apart, out of rows with pairs side by side."""
    pairs = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def bf16(values):
    """Bits of the nearest BF16 numbers, ties to even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(path, tensors, data, head_dim):
    """A safetensors file; gives how many values BF16 does not hold as they are."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    named = [(hub_name(tensor.name), tensor) for tensor in tensors]
    for name, tensor in named:
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [end, end + 2 * tensor.elements]}
        end += 2 * tensor.elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rounded = 0
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in named:
            values = tensor.values(data)
            if not numpy.isfinite(values).all():
                raise Refused(f"tensor {tensor.name} holds values that are no numbers; download the file again")
            if ".self_attn.q_proj." in name or ".self_attn.k_proj." in name:
                values = in_hub_order(values, head_dim)
            bits = bf16(values)
            rounded += int(numpy.count_nonzero((bits.astype(numpy.uint32) << 16).view(numpy.float32) != values))
            file.write(bits.tobytes())
    return rounded


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="the GGUF file")
    parser.add_argument("directory", type=pathlib.Path, help="the directory to make")
    args = parser.parse_args()
    try:
        data = numpy.memmap(args.model, numpy.uint8, "r")
        metadata, tensors = read(data)
        config = configuration(metadata, tensors)
        if args.directory.exists():
            raise Refused("it exists already; name a new directory")
        with tempfile.TemporaryDirectory(dir=args.directory.resolve().parent) as work:
            rounded = write(pathlib.Path(work, "model.safetensors"), tensors, data, config["head_dim"])
            pathlib.Path(work, "config.json").write_text(json.dumps(config, indent=2) + "\n")
            # The directory is made only when its files are complete.
            args.directory.mkdir()
            for file in pathlib.Path(work).iterdir():
                file.rename(args.directory / file.name)
    except (Refused, OSError, ValueError) as error:
        sys.exit(f"{args.model}: cannot be written as {args.directory}: {error}")
    total = sum(tensor.elements for tensor in tensors)
    print(f"{args.directory}: {len(tensors)} tensors, {total} values in BF16, {rounded} of them rounded")


if __name__ == "__main__":
    main()

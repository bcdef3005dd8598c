#!/usr/bin/env python3
"""What INT4 by `millrace quantize` loses in the weights, beside what other scales would lose, as one JSON object:

    examples/eval/int4_error.py SOURCE_DIRECTORY INT4_DIRECTORY          (needs numpy)

Errors are ||x - y|| / ||x|| over every tenth layer's projections. `millrace`: as the checkpoint holds them. `absmax`: the scale of
each group is its largest magnitude / 7, in BF16, which is symmetric INT4 without a search. `least`: the scale of each group that
loses least out of 120 of either sign, for that group alone and unrounded; symmetric INT4 in such groups cannot do better.
"""
import argparse
import json
import pathlib
import re
import struct
import sys

import numpy

STEP = 10
SAMPLED = re.compile(r"model\.layers\.(\d+)\..*_proj\.weight")


class Safetensors:
    """The tensors of a directory's only weight file."""

    def __init__(self, directory):
        self.data = numpy.memmap(directory / "model.safetensors", numpy.uint8, "r")
        length = struct.unpack("<Q", bytes(self.data[:8]))[0]
        self.header = json.loads(bytes(self.data[8 : 8 + length]))
        self.start = 8 + length

    def tensor(self, name):
        entry = self.header[name]
        begin, end = (self.start + offset for offset in entry["data_offsets"])
        kinds = {"BF16": "<u2", "I32": "<u4", "I64": "<i8"}
        if entry["dtype"] not in kinds:
            sys.exit(f"tensor {name} is {entry['dtype']}; a source in BF16 and its INT4 are compared")
        values = self.data[begin:end].view(kinds[entry["dtype"]]).reshape(entry["shape"])
        return (values.astype(numpy.uint32) << 16).view(numpy.float32) if entry["dtype"] == "BF16" else values


def nearest(values, scales):
    """Values after rounding to codes of -8 to 7 with a scale for each row of groups."""
    return numpy.clip(numpy.rint(values / scales), -8, 7) * scales


def lost(values, other):
    return ((values - other) ** 2).sum(axis=-1, dtype=numpy.float64)


def in_bf16(values):
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(numpy.float32)


def stored(checkpoint, name):
    """Values of an INT4 weight in groups, as compressed-tensors defines them."""
    words, scales = checkpoint.tensor(f"{name}_packed"), checkpoint.tensor(f"{name}_scale")
    nibbles = (words[..., None] >> numpy.arange(0, 32, 4, dtype=numpy.uint32)) & 15
    codes = nibbles.reshape(scales.size, -1).astype(numpy.float32) - 8
    return codes * scales.reshape(-1, 1)


def errors(values, written):
    """Squared errors of one tensor's groups, by how the scales were found."""
    largest = numpy.abs(values).max(axis=-1, keepdims=True)
    largest[largest == 0] = 1
    candidates = [largest / 7 * factor for factor in numpy.linspace(0.5, 1.1, 120, dtype=numpy.float32)]
    least = [lost(values, nearest(values, sign * scale)) for scale in candidates for sign in (1, -1)]
    return {
        "millrace": lost(values, written).sum(),
        "absmax": lost(values, nearest(values, in_bf16(largest / 7))).sum(),
        "least": numpy.min(least, axis=0).sum(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path, help="hub directory in BF16")
    parser.add_argument("int4", type=pathlib.Path, help="what `millrace quantize` made of it")
    args = parser.parse_args()
    source, quantized = Safetensors(args.source), Safetensors(args.int4)
    matched = [(name, SAMPLED.fullmatch(name)) for name in source.header]
    names = [name for name, match in matched if match and int(match[1]) % STEP == 0 and f"{name}_packed" in quantized.header]
    squares, sums = 0.0, {}
    for name in names:
        written = stored(quantized, name)
        values = source.tensor(name).reshape(written.shape)
        squares += (values.astype(numpy.float64) ** 2).sum()
        for how, error in errors(values, written).items():
            sums[how] = sums.get(how, 0.0) + error
    if not names:
        sys.exit(f"{args.int4}: holds no INT4 weight of {args.source}")
    print(json.dumps({"tensors": len(names)} | {how: float((error / squares) ** 0.5) for how, error in sums.items()}))


if __name__ == "__main__":
    main()

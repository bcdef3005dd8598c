#!/usr/bin/env python3
"""Millrace's `fast` lane against llama.cpp's llama-bench: same GGUF, same threads, alternating runs, medians and their ratio.

    examples/bench/against_llama.py --llama-bench PATH [--millrace PATH] [--model GGUF] [--threads N] [--rounds N]
        [--prefill-weights RECIPE] [--decode-weights RECIPE]

Each round runs llama-bench once and `millrace bench engine` once, so that a noisy machine disturbs both alike. llama-bench counts
model evaluation only; Millrace's numbers are taken at the engine's events and include scheduling, tag checks, hand-off and
sampling. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

MODEL = pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"


def llama(args):
    command = [args.llama_bench, "-m", args.model, "-t", args.threads, "-p", "128,512", "-n", "128", "-r", "1", "-o", "json"]
    rows = json.loads(subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout)
    return {("prefill", r["n_prompt"]) if r["n_prompt"] else ("decode", r["n_gen"]): r["avg_ts"] for r in rows}


def millrace(args):
    command = [args.millrace, "bench", "engine", "-m", args.model, "-t", args.threads, "-p", "128,512", "-n", "128", "-b", "1"]
    command += ["--prefill-weights", args.prefill_weights, "--decode-weights", args.decode_weights, "-r", "1", "--json"]
    rows = json.loads(subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout)["results"]
    return {(r["test"], r["tokens"]): r["tokens_per_second"]["median"] for r in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--millrace", default="target/release/millrace")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill-weights", default="int8")
    parser.add_argument("--decode-weights", default="int4")
    args = parser.parse_args()
    theirs, ours = [], []
    for number in range(args.rounds):
        theirs.append(llama(args))
        ours.append(millrace(args))
        print(f"round {number + 1}/{args.rounds}", flush=True)
    print(f"\n{pathlib.Path(args.model).name}, {args.threads} threads, {args.rounds} alternating rounds, tokens/s: median [min..max]\n")
    print(f"| test | llama.cpp | Millrace {args.prefill_weights}/{args.decode_weights} | ratio |\n|---|---|---|---|")
    for test in ours[0]:
        a, b = [r[test] for r in theirs], [r[test] for r in ours]
        cells = [f"{statistics.median(x):.0f} [{min(x):.0f}..{max(x):.0f}]" for x in (a, b)]
        print(f"| {test[0]} {test[1]} | {cells[0]} | {cells[1]} | {statistics.median(b) / statistics.median(a):.2f} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How much of its decode speed the engine keeps while other programs want the same cores: alternating runs alone and beside
processes that do nothing but take time.

    examples/bench/beside_hogs.py [--millrace PATH] [--model GGUF] [--threads N] [--hogs N] [--rounds N]

As many hogs as threads by default: an engine that gave way to nobody would keep half. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

MODEL = pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"


def decode(args):
    """Tokens per second of one stream."""
    command = [args.millrace, "bench", "engine", "-m", args.model, "-t", args.threads, "-p", "16", "-n", "128", "-b", "1", "-r", "1"]
    done = subprocess.run([str(part) for part in [*command, "--json"]], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()}")
    rows = json.loads(done.stdout)["results"]
    return next(row["tokens_per_second"]["median"] for row in rows if row["test"] == "decode")


def beside_hogs(args):
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.hogs or args.threads)]
    try:
        return decode(args)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="target/release/millrace")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hogs", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.rounds < 1 or args.threads < 1:
        sys.exit("--rounds and --threads: 1 or more")
    for path in [args.millrace, args.model]:
        if not pathlib.Path(path).exists():
            sys.exit(f"{path} does not exist; build with `cargo build --release`, fetch the model with examples/fetch-model.sh")
    alone, beside = [], []
    for _ in range(args.rounds):
        alone.append(decode(args))
        beside.append(beside_hogs(args))
    for name, rates in [("alone", alone), ("beside hogs", beside)]:
        print(f"{name:12} {statistics.median(rates):7.1f} tokens/s  [{min(rates):.1f}..{max(rates):.1f}]")
    print(f"kept         {100 * statistics.median(beside) / statistics.median(alone):7.1f} %")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Millrace's engine against llama.cpp, ik_llama.cpp and OpenVINO GenAI: same GGUF, same threads, alternating rounds.

    examples/bench/against_peers.py [--llama-cpp DIR] [--ik-llama DIR] [--openvino PYTHON] [--variants NAME..]
        [--gguf FILE[=PREFILL/DECODE]].. [--tests NAME,..] [--threads 1,2] [--rounds N] [--out FILE] [--merge]

Prints a Markdown table of medians with the ratio to the best peer, and writes every single figure to --out (JSON) after each round.
DIR is a directory with llama-bench and llama-batched-bench (build natively: -DGGML_NATIVE=ON), PYTHON one with openvino-genai;
MILLRACE_PEER_LLAMA_CPP, MILLRACE_PEER_IK_LLAMA and MILLRACE_PEER_OPENVINO name them too. A peer that is not named is left out, and
the report says so.

Engines take turns within each round, another one first each time. A run during which other processes or the hypervisor took more
than --max-foreign percent of a core is repeated at once, up to --attempts; the least disturbed attempt counts and is marked if it
was too disturbed still. `--merge` keeps what --out holds of other tests, formats and thread counts, so that a part can be repeated.
Standard library only; Linux.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import machine
import peers
import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
GGUF = pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"
# The fastest recipes that take nothing from the file's own precision, by what its name ends with.
RECIPES = {"Q4_1": "int8/int4", "Q4_0": "int8/int4", "Q8_0": "int8/int8", "BF16": "bf16/bf16"}


class Model:
    """A GGUF file, and what Millrace makes of its weights in prefill and in decode."""

    def __init__(self, text):
        path, _, recipes = text.partition("=")
        self.path = pathlib.Path(path).expanduser().resolve()
        if not self.path.is_file():
            raise argparse.ArgumentTypeError(f"{path} is not a file")
        kind = self.path.stem.replace("-", ".").rpartition(".")[2].upper()
        self.recipes = recipes or RECIPES.get(kind)
        if not self.recipes or self.recipes.count("/") != 1:
            raise argparse.ArgumentTypeError(f"{text}: name Millrace's recipes, as in {path}=int8/int4")
        self.prefill, self.decode = self.recipes.split("/")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_programs(parser)
    variants = [f"{project}:{variant}" for project, variant in peers.Llama.VARIANTS if variant]
    parser.add_argument("--variants", nargs="*", choices=variants, default=variants, help="settings measured beside the defaults")
    parser.add_argument("--gguf", type=Model, action="append", metavar="FILE[=PREFILL/DECODE]")
    parser.add_argument("--tests", type=tests, default=list(peers.TESTS), metavar="NAME,..", help=", ".join(peers.TESTS))
    parser.add_argument("--threads", type=counts, default=[1, 2], metavar="N,..")
    parser.add_argument("--kv", default="fp8", help="Millrace's KV format in decode; the peers keep their defaults (default: fp8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=3, help="of each run, while others disturb it")
    parser.add_argument("--max-foreign", type=float, default=5.0, metavar="PERCENT", help="of a core")
    parser.add_argument("--timeout-s", type=float, default=1200, help="of one run of one program")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/against-peers.json", metavar="FILE")
    parser.add_argument("--merge", action="store_true")
    args = parser.parse_args()
    if min(args.rounds, args.attempts) < 1:
        parser.error("--rounds and --attempts start at 1")
    args.gguf = args.gguf or [Model(str(GGUF))]
    return args


def add_programs(parser):
    """Options that say where Millrace and its peers are."""
    parser.add_argument("--millrace", type=absolute, default=ROOT / "target/release/millrace", metavar="FILE")
    for option, metavar, variable in (
        ("--llama-cpp", "DIR", "MILLRACE_PEER_LLAMA_CPP"),
        ("--ik-llama", "DIR", "MILLRACE_PEER_IK_LLAMA"),
        ("--openvino", "PYTHON", "MILLRACE_PEER_OPENVINO"),
    ):
        parser.add_argument(option, type=absolute, metavar=metavar, default=os.environ.get(variable))


def absolute(path):
    """Links are kept: a virtual environment's Python is one."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(path)))


def tests(text):
    unknown = [name for name in text.split(",") if name not in peers.TESTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(peers.TESTS)}")
    return text.split(",")


def counts(text):
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers start at 1")
    return numbers


def engines(args):
    """The engines to measure, and a line for each that is left out."""
    found, left_out = [peers.Millrace(args.millrace, args.kv)], []
    for project, directory, option in (("llama.cpp", args.llama_cpp, "--llama-cpp"), ("ik_llama.cpp", args.ik_llama, "--ik-llama")):
        if not directory:
            left_out.append(f"{project} (no {option})")
            continue
        chosen = [variant.partition(":")[2] for variant in args.variants if variant.startswith(f"{project}:")]
        found += [peers.Llama(project, directory, variant) for variant in ["", *chosen]]
    if args.openvino:
        found.append(peers.OpenVino(args.openvino))
    else:
        left_out.append("OpenVINO GenAI (no --openvino)")
    return found, left_out


def version(engine, model, timeout_s):
    """What exactly an engine is. Raises `machine.Failed` where it does not even start."""
    if isinstance(engine, peers.Millrace):
        name = machine.run([engine.binary, "--version"], timeout_s).stdout.strip()
        digest = hashlib.sha256(pathlib.Path(engine.binary).read_bytes()).hexdigest()[:16]
        if not pathlib.Path(engine.binary).is_relative_to(ROOT):
            return f"{name}, sha256 {digest}"
        describe = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
        return f"{name}, sha256 {digest}, checkout at {commit or 'no commit'}"
    if isinstance(engine, peers.OpenVino):
        return machine.run([engine.python, "-c", peers.ASK_OPENVINO], timeout_s).stdout.strip()
    command = [engine.directory / "llama-bench", "-m", model.path, "-t", 1, "-p", 1, "-n", 0, "-r", 1, "-o", "json"]
    row = peers.rows_of_json(machine.run(command, timeout_s).stdout)[0]
    extra = " ".join(engine.bench_arguments)
    return f"commit {row['build_commit']}, build {row['build_number']}" + (f", {extra}" if extra else "")


def measure(engine, model, threads, chosen, args):
    """Rates of one group's tests by one engine, and the load meanwhile: of the least disturbed attempt."""
    best = None
    for attempt in range(1, args.attempts + 1):
        ran = machine.run(engine.command(model, threads, chosen), args.timeout_s)
        rates = engine.rates("\n".join(getattr(ran, stream) for stream in engine.prints), chosen)
        load = ran.load | {"attempt": attempt, "disturbed": machine.disturbance(ran.load) > args.max_foreign}
        if best is None or machine.disturbance(load) < machine.disturbance(best[1]):
            best = rates, load
        if not load["disturbed"]:
            break
    return best


class Results:
    """Everything measured so far: what the JSON file holds and the report is made of."""

    def __init__(self, args, left_out):
        self.path, self.rounds = args.out, {}
        self.content = {
            "machine": machine.describe(), "programs": {}, "rows": [], "left_out": left_out, "failures": [],
            "max_foreign_percent": args.max_foreign, "notes": peers.NOTES,
        }
        if args.merge and self.path.exists():
            before = json.loads(self.path.read_text())
            if before["machine"] != self.content["machine"]:
                sys.exit(f"--merge: {self.path} was measured on another machine ({before['machine']['cpu']}); choose another --out")
            self.content["programs"], self.content["rows"] = before["programs"], before["rows"]
            # What was measured before is left out of this run, not of the report.
            self.content["left_out"] = [line for line in left_out if line.partition(" (")[0] not in before["programs"]]

    def add(self, key, engine, rates, load):
        """A run's figures; the first of a test's and engine's replaces what was merged in."""
        gguf, recipes, threads = key
        for test, rate in rates.items():
            runs = self.rounds.setdefault((*key, test, engine.name), [])
            runs.append({"tokens_per_second": rate} | load)
            row = next((row for row in self.content["rows"] if self.key(row) == (*key, test)), None)
            if row is None:
                row = {"gguf": gguf, "recipes": recipes, "threads": threads, "test": test, "engines": {}}
                self.content["rows"].append(row)
            date = datetime.date.today().isoformat()
            figure = tables.summary(runs) | {"version": self.content["programs"][engine.name], "date": date}
            row["engines"][engine.name] = figure
            row["best_peer"], row["ratio"] = tables.compare(row["engines"])

    @staticmethod
    def key(row):
        return row["gguf"], row["recipes"], row["threads"], row["test"]

    def write(self):
        order = {name: i for i, name in enumerate(peers.TESTS)}
        self.content["rows"].sort(key=lambda row: (row["gguf"], row["recipes"], row["threads"], order.get(row["test"], 0)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")

    def fail(self, text):
        if text not in self.content["failures"]:
            self.content["failures"].append(text)
        print(f"  failed: {text}", file=sys.stderr, flush=True)


def rounds(args, found, results):
    """Runs everything: files and thread counts in turn, engines alternating within each round."""
    for model in args.gguf:
        for threads in args.threads:
            for number in range(args.rounds):
                first = number % len(found)
                for group in peers.GROUPS:
                    chosen = {name: peers.TESTS[name] for name in args.tests if peers.TESTS[name].group == group}
                    for engine in (found[first:] + found[:first]) if chosen else []:
                        turn(args, engine, (model, threads, chosen), results)
                results.write()
                print(f"{model.path.name}, {threads} threads: round {number + 1}/{args.rounds}", file=sys.stderr, flush=True)


def turn(args, engine, what, results):
    model, threads, chosen = what
    try:
        rates, load = measure(engine, model, threads, chosen, args)
    except (machine.Failed, peers.Unreadable, ValueError, KeyError) as error:
        results.fail(f"{engine.name}, {model.path.name}, {threads} threads, {', '.join(chosen)}: {error}")
        return
    results.add((model.path.name, model.recipes, threads), engine, rates, load)


def main():
    args = arguments()
    found, left_out = engines(args)
    results = Results(args, left_out)
    able = []
    for engine in found:
        try:
            results.content["programs"][engine.name] = version(engine, args.gguf[0], args.timeout_s)
            able.append(engine)
        except (machine.Failed, peers.Unreadable) as error:
            results.fail(f"{engine.name}: {error}")
    if able:
        rounds(args, able, results)
    results.write()
    print(tables.report(results.content))
    if results.content["failures"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

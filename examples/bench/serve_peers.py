#!/usr/bin/env python3
"""Millrace's server against llama.cpp's and ik_llama.cpp's over HTTP: same GGUF, same threads, the same clients, alternating rounds.

    examples/bench/serve_peers.py [--llama-cpp DIR] [--ik-llama DIR] [--openvino PYTHON] [--gguf FILE[=PREFILL/DECODE]]
        [--concurrency 1,8,32] [--prompt-tokens 240] [--max-tokens 64] [--threads N] [--rounds N] [--out FILE]

In each round every server is started, driven by `millrace bench serve` (closed loop, prompts that share no beginning), and stopped,
another one first each time. Prints a Markdown table for each number of clients and writes all figures to --out (JSON).
DIR is a directory with llama-server; PYTHON one with openvino-genai, which has no server and is measured in process by
openvino_bench.py: all requests at once, output tokens over the whole time, no HTTP. The same environment variables as for
against_peers.py name the peers, one that is not named is left out, and disturbed runs are repeated in the same way.
Standard library only; Linux.
"""

import argparse
import json
import pathlib
import statistics
import sys

import machine
from against_peers import GGUF, ROOT, Model, add_programs, counts
from peers import ASK_OPENVINO, HERE, listed
from servers import NAME, servers
from tables import described, digits

COLUMNS = ["out tok/s", "TTFT p50", "TTFT p95", "ITL p50", "ITL p95"]


def figures(report):
    """By number of clients: the figures of `millrace bench serve --json` that are compared. Milliseconds, and tokens a second."""
    levels = {}
    for level in report["results"]:
        values = [level["output_tokens_per_second"]]
        values += [(level[name] or {}).get(percentile) for name in ("ttft_ms", "itl_ms") for percentile in ("p50", "p95")]
        medians = [value and value["median"] for value in values]
        levels[level["concurrency"]] = dict(zip(COLUMNS, medians)) | {"prompt_tokens": level["prompt_tokens"]}
    return levels


def client(args, port):
    """The command that measures the server on a port. It fails when any request does.

    llama.cpp's servers close kept connections as the next request comes, which would count as its failure.
    """
    where = ["--url", f"http://127.0.0.1:{port}", "--model", NAME, "--json", "--repeats", 1, "--fresh-connections"]
    size = ["--prompt-tokens", args.prompt_tokens, "--max-tokens", args.max_tokens]
    size += ["--requests", args.requests] if args.requests else []
    return [args.millrace, "bench", "serve", *where, "--concurrency", listed(args.concurrency), *size]


def drive(args, server):
    """One round of one server: its figures and the load meanwhile, of the least disturbed attempt."""
    best = None
    for attempt in range(1, args.attempts + 1):
        with server.running(args.timeout_s) as (process, port):
            ran = machine.run(client(args, port), args.timeout_s, beside=process.pid)
            load = ran.load | {"attempt": attempt, "peak_rss_bytes": peak_rss_bytes(process.pid)}
        best, enough = better(best, (figures(json.loads(ran.stdout)), load), args)
        if enough:
            break
    return best


def in_process(args):
    """OpenVINO GenAI without a server: output tokens a second alone."""
    best = None
    for attempt in range(1, args.attempts + 1):
        levels, loads = {}, []
        for clients in args.concurrency:
            test = f"whole:{args.max_tokens}:{clients}:{args.prompt_tokens}"
            command = [args.openvino, HERE / "openvino_bench.py", args.gguf.path, "--threads", args.threads, test]
            ran = machine.run(command, args.timeout_s)
            rate = json.loads(ran.stdout.strip().splitlines()[-1])["results"][0]["tokens_per_second"]
            levels[clients] = {COLUMNS[0]: rate, "prompt_tokens": args.prompt_tokens}
            loads.append(ran.load)
        best, enough = better(best, (levels, max(loads, key=machine.disturbance) | {"attempt": attempt}), args)
        if enough:
            break
    return best


def better(best, new, args):
    """The less disturbed of two attempts, and whether the new one was quiet enough."""
    disturbed = machine.disturbance(new[1]) > args.max_foreign
    new = new[0], new[1] | {"disturbed": disturbed}
    keep = best is not None and machine.disturbance(best[1]) <= machine.disturbance(new[1])
    return (best if keep else new), not disturbed


def peak_rss_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def table(rounds, clients):
    """Markdown of one number of clients: medians over the rounds, spread of the rate, milliseconds."""
    lines = [f"| server | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, runs in rounds.items():
        levels = [levels[clients] for levels, _ in runs if clients in levels]
        if not levels:
            continue
        cells = []
        for column in COLUMNS:
            values = [level[column] for level in levels if level.get(column) is not None]
            cells.append(digits(statistics.median(values)) if values else "-")
            if column == COLUMNS[0] and values:
                star = "\\*" if any(load["disturbed"] for _, load in runs) else ""
                cells[-1] += f" [{digits(min(values))}..{digits(max(values))}]{star}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_programs(parser)
    parser.add_argument("--servers", nargs="*", metavar="NAME", help="only these, as the table names them")
    parser.add_argument("--gguf", type=Model, metavar="FILE[=PREFILL/DECODE]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--concurrency", type=counts, default=[1, 8, 32], metavar="N,..")
    parser.add_argument("--prompt-tokens", type=int, default=240)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, help="of each round and number of clients (default: twice the clients, at least 8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=2, help="of each run, while others disturb it")
    parser.add_argument("--max-foreign", type=float, default=5.0, metavar="PERCENT", help="of a core")
    parser.add_argument("--timeout-s", type=float, default=1200, help="of one start or one run")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/serve-peers.json", metavar="FILE")
    args = parser.parse_args()
    if min(args.rounds, args.attempts) < 1:
        parser.error("--rounds and --attempts start at 1")
    args.gguf = args.gguf or Model(str(GGUF))
    return args


def versions(args):
    """What each program says of its version, on one line; why it does not where it fails."""
    asked = {"Millrace": [args.millrace, "--version"]}
    for name, directory in (("llama.cpp", args.llama_cpp), ("ik_llama.cpp", args.ik_llama)):
        asked |= {name: [pathlib.Path(directory) / "llama-server", "--version"]} if directory else {}
    asked |= {"OpenVINO GenAI": [args.openvino, "-c", ASK_OPENVINO]} if args.openvino else {}
    told = {}
    for name, command in asked.items():
        try:
            ran = machine.run(command, args.timeout_s)
            told[name] = " ".join((ran.stdout + ran.stderr).split())
        except machine.Failed as error:
            told[name] = str(error)
    return told


def round_of_all(args, number, rounds, failures):
    """Measures every server once, into `rounds` and `failures`; the lines of those that are left out."""
    found, left_out = servers(args)
    turns = [(server.name, lambda server=server: drive(args, server)) for server in found]
    if args.openvino:
        turns.append(("OpenVINO GenAI, in process", lambda: in_process(args)))
    else:
        left_out.append("OpenVINO GenAI, in process (no --openvino)")
    turns = [turn for turn in turns if not args.servers or turn[0] in args.servers]
    first = number % max(1, len(turns))
    for name, measure in turns[first:] + turns[:first]:
        try:
            rounds.setdefault(name, []).append(measure())
        except (machine.Failed, ValueError, KeyError, OSError) as error:
            failures.append(f"round {number + 1}, {name}: {error}")
            print(f"  failed: {failures[-1]}", file=sys.stderr, flush=True)
    return left_out


def main():
    args = arguments()
    rounds, failures, left_out = {}, [], []
    where, programs = machine.describe(), versions(args)
    for number in range(args.rounds):
        left_out = round_of_all(args, number, rounds, failures)
        content = {
            "machine": where, "gguf": args.gguf.path.name, "recipes": args.gguf.recipes, "threads": args.threads,
            "programs": programs, "prompt_tokens": args.prompt_tokens, "max_tokens": args.max_tokens, "left_out": left_out, "failures": failures,
            "servers": {name: [{"levels": levels, "load": load} for levels, load in runs] for name, runs in rounds.items()},
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        print(f"round {number + 1}/{args.rounds}", file=sys.stderr, flush=True)
    print(f"{described(where)}; {args.gguf.path.name}, Millrace {args.gguf.recipes}, threads: {args.threads}, rounds: {args.rounds};")
    print(f"prompts of about {args.prompt_tokens} tokens, {args.max_tokens} tokens out; medians over rounds, milliseconds, [min..max]")
    for clients in args.concurrency:
        print(f"\n{clients} client{'s' if clients > 1 else ''}\n\n{table(rounds, clients)}")
    print("\n".join(["", *(f"- {name}: {version}" for name, version in programs.items())]))
    print("\n".join([*(f"- Left out: {text}" for text in left_out), *(f"- Failed: {text}" for text in failures)]))
    if any(load["disturbed"] for runs in rounds.values() for _, load in runs):
        print(f"- \\*: rounds in which others took more than {args.max_foreign:g} % of a core in every attempt.")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()

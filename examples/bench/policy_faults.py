#!/usr/bin/env python3
"""What a failing schedule policy costs the clients: one that traps in a tenth of its decisions and runs into its deadline in another
tenth, with the breaker held closed and with it free, against the native fallback alone. Alternating rounds over HTTP.

    examples/bench/policy_faults.py [--millrace PATH] [--guest WASM] [--model GGUF] [--threads N] [--concurrency N]
        [--requests N] [--prompt-tokens N] [--max-tokens N] [--rounds N] [--out FILE]

Tells the 99th percentile of TTFT of each (median over rounds, and over that of the native fallback), how many decisions failed how, and
how many requests failed, and writes all to --out (JSON). Fails where a request failed, or where the policy did not fail as it
should have: times are told, not judged. Standard library only; Linux.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import urllib.request

import machine
from servers import CONFIG, NAME, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"
# More faults in a row than ever come by lot: the policy is asked in every step.
HELD = "breaker_faults = 1000"
FAULTS = ("trap", "timeout", "late", "unavailable")
NATIVE, CLOSED, FREE = "native fallback", "breaker held closed", "breaker free"


def variants(args):
    guest = f'component = "{args.guest}"'
    policies = {NATIVE: 'component = "native"', CLOSED: f"{guest}\n{HELD}", FREE: guest}
    return {name: server(args, name, policy) for name, policy in policies.items()}


def server(args, name, policy):
    def command(port, directory):
        config = directory / "deploy.toml"
        text = CONFIG.format(port=port, name=NAME, path=args.model, threads=args.threads, prefill="int8", decode="int4")
        config.write_text(f"{text}\n[policy.schedule]\n{policy}\n")
        return [args.millrace, "serve", "-c", config]

    return Server(name, command, "/ready")


def metric(text, name, **labels):
    """Sum of a metric's samples that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    samples = (line.rpartition(" ") for line in text.splitlines() if line.partition("{")[0] == name)
    return sum(float(value) for sample, _, value in samples if all(label in sample for label in wanted))


def drive(args, server):
    """One round of one server."""
    with server.running(args.timeout_s) as (process, port):
        url = f"http://127.0.0.1:{port}"
        size = ["--prompt-tokens", args.prompt_tokens, "--max-tokens", args.max_tokens, "--requests", args.requests]
        client = [args.millrace, "bench", "serve", "--url", url, "--model", NAME, "--json", "--repeats", 1, *size]
        ran = machine.run([*client, "--concurrency", args.concurrency], args.timeout_s, beside=process.pid)
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
    level = json.loads(ran.stdout)["results"][0]
    count = {fault: metric(metrics, "millrace_policy_faults_total", kind="schedule", fault=fault) for fault in FAULTS}
    return {
        "ttft_p99_ms": level["ttft_ms"]["p99"]["median"],
        "requests": level["requests"],
        "failed": level["failures"]["total"] + level["warm_up_failures"]["total"],
        "decisions": metric(metrics, "millrace_policy_calls_total", kind="schedule"),
        "faults": count,
        "rollbacks": metric(metrics, "millrace_policy_rollbacks_total", kind="schedule"),
        "load": ran.load,
    }


def summary(rounds):
    """By variant: the median of its rounds' TTFT p99, over that of the native fallback, and sums of what was counted."""
    p99 = {name: statistics.median(one["ttft_p99_ms"] for one in ones) for name, ones in rounds.items()}
    total = {}
    for name, ones in rounds.items():
        faults = {fault: sum(one["faults"][fault] for one in ones) for fault in FAULTS}
        counts = {what: sum(one[what] for one in ones) for what in ("requests", "failed", "decisions", "rollbacks")}
        total[name] = counts | {"ttft_p99_ms": p99[name], "over_native": p99[name] / p99[NATIVE], "faults": faults}
    return total


def wrong(total):
    """What should not have been: failed requests, or a policy that did not fail as it should have."""
    found = [f"{name}: {one['failed']} requests failed" for name, one in total.items() if one["failed"]]
    if any(total[NATIVE]["faults"].values()):
        found.append(f"{NATIVE}: it has faults: {total[NATIVE]['faults']}")
    for name in (CLOSED, FREE):
        faults = total[name]["faults"]
        if not faults["trap"] or not faults["timeout"] + faults["late"]:
            found.append(f"{name}: the policy did not fail in both ways: {faults}")
    return found


def table(total):
    lines = ["| schedule policy | TTFT p99, ms | over native | requests | failed | decisions | traps | timeouts | late | not ready |"]
    lines.append("|---" * 10 + "|")
    for name, one in total.items():
        faults = " | ".join(f"{one['faults'][fault]:.0f}" for fault in FAULTS)
        figures = f"{one['ttft_p99_ms']:.1f} | {one['over_native']:.2f} | {one['requests']} | {one['failed']} | {one['decisions']:.0f}"
        lines.append(f"| {name} | {figures} | {faults} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", type=pathlib.Path, default=ROOT / "target/release/millrace")
    parser.add_argument("--guest", type=pathlib.Path, default=ROOT / "tests/guests/dist/flaky-schedule.wasm")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=400, help="of each round")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout-s", type=float, default=1800)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    args.millrace, args.guest = args.millrace.resolve(), args.guest.resolve()
    rounds = {name: [] for name in (NATIVE, CLOSED, FREE)}
    try:
        for number in range(args.rounds):
            for name, one in variants(args).items():
                rounds[name].append(drive(args, one))
                print(f"round {number + 1}, {name}: TTFT p99 {rounds[name][-1]['ttft_p99_ms']:.1f} ms", file=sys.stderr)
    except machine.Failed as failed:
        sys.exit(str(failed))
    total = summary(rounds)
    print(table(total))
    if args.out:
        args.out.write_text(json.dumps({"machine": machine.describe(), "total": total, "rounds": rounds}, indent=1) + "\n")
    found = wrong(total)
    if found:
        sys.exit("; ".join(found))


if __name__ == "__main__":
    main()

"""Waits for a Millrace server, asks it one question over HTTP with streaming, and says how it was answered.

Standard library only, so that it runs wherever python3 does.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request

QUESTION = "What is the largest ocean on Earth?"


def alive(pid):
    """Whether the server's process still runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_ready(server, pid, patience_s):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if pid and not alive(pid):
            sys.exit("the server ended before it was ready")
        try:
            with urllib.request.urlopen(f"{server}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"the server was not ready within {patience_s} s")


def open_or_exit(request):
    try:
        return urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        sys.exit(f"the server refused the request ({error.code}): {error.read().decode(errors='replace')}")


def first_model(server):
    with urllib.request.urlopen(f"{server}/v1/models", timeout=10) as answer:
        return json.load(answer)["data"][0]["id"]


def ask(server, model):
    """Prints the answer as it comes; returns (ttft_s, tokens/s, fingerprint)."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/v1/chat/completions", json.dumps(body).encode(), headers)
    began, first, last, tokens, fingerprint = time.monotonic(), None, None, 0, "?"
    with open_or_exit(request) as answer:
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[len("data: ") :])
            if chunk.get("error"):
                sys.exit(f"\nthe server failed: {chunk['error']['message']}")
            fingerprint = chunk.get("system_fingerprint") or fingerprint
            if chunk["choices"]:
                text = chunk["choices"][0]["delta"].get("content") or ""
                if text:
                    last = time.monotonic()
                    first = first or last
                    print(text, end="", flush=True)
            elif chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    print()
    if first is None:
        sys.exit("the answer was empty")
    rate = (tokens - 1) / (last - first) if tokens > 1 and last > first else 0.0
    return first - began, rate, fingerprint


def policies(admin):
    with urllib.request.urlopen(f"{admin}/admin/policies", timeout=10) as answer:
        slots = json.load(answer)["policies"]
    return ", ".join(f"{slot['kind']} {slot['name']}@{slot['version']}" for slot in slots)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--admin", default="http://127.0.0.1:8081")
    parser.add_argument("--model", help="the first that the server lists, if not given")
    parser.add_argument("--server-pid", type=int, default=0)
    parser.add_argument("--patience-s", type=float, default=120)
    args = parser.parse_args()
    if args.server_pid and not os.path.exists(f"/proc/{args.server_pid}"):
        sys.exit("the server is not running")
    wait_until_ready(args.server, args.server_pid, args.patience_s)
    print(f"\n> {QUESTION}")
    ttft_s, rate, fingerprint = ask(args.server, args.model or first_model(args.server))
    print(f"\nTTFT {ttft_s * 1000:.0f} ms, {rate:.0f} tok/s; {describe(fingerprint)}; policies: {policies(args.admin)}")


def describe(fingerprint):
    """`LANE/PREFILL/DECODE/WEIGHTS` in words."""
    parts = fingerprint.split("/")
    if len(parts) < 3:
        return fingerprint
    return f"lane {parts[0]}, prefill {parts[1]}, decode {parts[2]}"


if __name__ == "__main__":
    main()

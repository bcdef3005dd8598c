"""The commands beside `serve`: what they print, and what they say about what cannot be."""

import json
import subprocess

import pytest
from conftest import BINARIES, ROOT

TINY = ROOT / "host/model/tests/data/llama-tied-bf16"


def millrace(*args, **options):
    command = [str(BINARIES / "millrace"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def bench(*args):
    weights = ("--prefill-weights", "stored", "--decode-weights", "stored", "--kv", "bf16")
    return millrace("bench", "engine", "-m", TINY, *weights, "-t", "2", "-r", "1", *args)


def test_bench_runs_many_streams_behind_deep_contexts():
    """Bug: the first stream had ended before the last had begun ("never ran together")."""
    result = bench("-p", "8,300", "-n", "4", "-b", "1,24", "-d", "8,400", "--chunk", "64", "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["results"]
    kinds = [(row["test"], row["tokens"], row["batch"], row["depth"]) for row in rows]
    decode = [("decode", 4, batch, depth) for batch in (1, 24) for depth in (8, 400)]
    assert kinds == [("prefill", 8, 1, 0), ("prefill", 300, 1, 0), *decode]
    assert all(row["tokens_per_second"]["median"] > 0 and row["peak_rss_bytes"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-p", "512"), ("-p 512", "context of 512 tokens", "at most -p 511")),
        (("-d", "500", "-n", "16"), ("-d 500 -n 16", "context of 512 tokens", "-n 12")),
        (("-n", "600"), ("-n 600", "context of 512 tokens", "at most -n 504")),
        (("-b", "100000000"), ("-b 100000000", "GiB", "memory")),
        (("--chunk", "1000"), ("--chunk 1000", "context of 512 tokens")),
        (("-b", "0"), ("-b 0", "start at 1")),
    ],
)
def test_bench_says_what_does_not_fit(args, words):
    small = {"-p": "8", "-n": "4", "-b": "1", "-d": "8", "--chunk": "64"} | dict(zip(args[::2], args[1::2]))
    result = bench(*(part for pair in small.items() for part in pair))
    assert result.returncode == 2, result.stdout + result.stderr
    for word in words:
        assert word in result.stderr

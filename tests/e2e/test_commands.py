"""The commands beside `serve`: what they print, and what they say about what cannot be."""

import json
import socket
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


def logits(ids, out):
    return millrace("eval", "logits", "--model", TINY, "--ids", ids, "--out", out)


def test_eval_says_once_why_a_file_cannot_be_had(tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3]")
    assert logits(ids, tmp_path / "out.safetensors").returncode == 0
    nowhere = logits(ids, tmp_path / "nowhere" / "out.safetensors")
    assert nowhere.returncode == 1 and "Traceback" not in nowhere.stderr
    assert nowhere.stderr.count("No such file") == 1 and "--out" in nowhere.stderr
    assert "hub directory" not in nowhere.stderr, "found out before the model is loaded"
    inline = logits("[1, 2, 3]", tmp_path / "out.safetensors")
    assert inline.returncode == 2 and "--ids takes the name of a file" in inline.stderr
    assert "--ids <FILE>" in millrace("eval", "logits", "--help").stdout


def test_check_speaks_the_words_of_the_file():
    result = millrace("check", "-c", ROOT / "examples/reference.toml")
    assert result.returncode == 0, result.stderr
    assert "compute fast" in result.stdout
    for line in result.stdout.splitlines():
        assert "Fast" not in line and "Some(" not in line


def test_a_port_that_is_taken_is_named_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:{}".format(taken.getsockname()[1])
        text = (ROOT / "examples/quickstart.toml").read_text()
        config = tmp_path / "taken.toml"
        config.write_text(f'[server]\nlisten = "{address}"\nadmin_listen = "127.0.0.1:0"\n{text}')
        result = millrace("serve", "-c", config)
    assert result.returncode == 1
    assert result.stderr.count("Address already in use") == 1 and address in result.stderr

"""Weights that make no numbers: requests that meet them end with an error that says so, all others go on."""

import concurrent.futures
import hashlib
import json
import shutil
import struct

import pytest
from conftest import ROOT

TINY = ROOT / "host/model/tests/data/llama-bf16"
# One lane whose weights are good, one whose prefill knows one token badly, one whose decode overflows.
POOLS = """
[model.tiny]
name = "tiny"
path = "{directory}/good"

[device.cpu]
kind = "cpu"
threads = 2

[pool.prefill]
stage = "prefill"
pages = 24
page_tokens = 16

[pool.decode]
stage = "decode"
pages = 24
page_tokens = 16

[pool.poisoned-prefill]
stage = "prefill"
checkpoint = "{directory}/poisoned"
pages = 24
page_tokens = 16

[pool.overflowing-decode]
stage = "decode"
checkpoint = "{directory}/overflowing"
pages = 24
page_tokens = 16

[lane.good]
prefill = "prefill"
decode = "decode"

[lane.poisoned]
prefill = "poisoned-prefill"
decode = "decode"

[lane.overflowing]
prefill = "prefill"
decode = "overflowing-decode"
"""
LANES = ("good", "poisoned", "overflowing")
TENANT = '\n[tenant.{lane}]\nkey_sha256 = "{digest}"\nallowed_lanes = ["{lane}"]\n'


def tokenizer():
    """A token for each byte, behind three special ones."""
    special = ["<pad>", "<s>", "</s>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocab, shifted = {text: id for id, text in enumerate(special)}, 0
    for byte in range(253):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        vocab[chr(byte if printable else 256 + shifted)] = byte + 3
        shifted += not printable
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "pre_tokenizer": level, "decoder": level,
        "added_tokens": [{"id": id, "content": text} | flags for id, text in enumerate(special)],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [],
        },
    }


def checkpoint(directory, tensor=None, first=0, values=(), count=1):
    """The tiny Llama; from value `first` of a tensor on, BF16 `values` are repeated so often in place of its own."""
    directory.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copyfile(TINY / file, directory / file)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False}))
    if tensor is None:
        return
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    begin, end = header[tensor]["data_offsets"]
    assert header[tensor]["dtype"] == "BF16"
    new = b"".join(struct.pack("<f", value)[2:] for value in values) * count
    at = 8 + length + begin + 2 * first
    assert at + len(new) <= 8 + length + end
    data[at : at + len(new)] = new
    path.write_bytes(data)


def key(lane):
    return {"Authorization": f"Bearer key-{lane}"}


@pytest.fixture
def server(start, tmp_path):
    hidden = json.loads((TINY / "config.json").read_text())["hidden_size"]
    checkpoint(tmp_path / "good")
    # What `Z` stands for, which no other text touches: the head is a tensor of its own.
    checkpoint(tmp_path / "poisoned", "model.embed_tokens.weight", (ord("Z") + 3) * hidden, [float("nan")], hidden)
    # Finite weights of alternating sign whose products are not.
    checkpoint(tmp_path / "overflowing", "model.norm.weight", 0, [3e38, -3e38], hidden // 2)
    digests = {lane: hashlib.sha256(f"key-{lane}".encode()).hexdigest() for lane in LANES}
    tenants = "".join(TENANT.format(lane=lane, digest=digest) for lane, digest in digests.items())
    return start(pools=POOLS.format(directory=tmp_path), extra=tenants)


def ask(server, lane, prompt, **fields):
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True} | fields
    return server.post("/v1/completions", body, key(lane))


def check_error(error):
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "output_not_finite")
    assert "not finite" in error["message"] and "operator" in error["message"]


def test_output_that_is_not_finite_ends_its_request_alone(server):
    text = lambda answer: answer.json["choices"][0]["text"]
    alone = {prompt: text(ask(server, "good", prompt)) for prompt in ("once", "twice", "a longer prompt of more than one page")}
    # Before the first token: a status, streamed or not.
    for stream in (False, True):
        answer = ask(server, "poisoned", "a Zoo", stream=stream)
        assert answer.status == 500, answer.body
        assert answer.headers["x-should-retry"] == "false"
        check_error(answer.json["error"])
    # Behind the first token, which prefill drew: an event, then the end.
    body = {"model": "tiny", "prompt": "once", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    events = list(server.stream("/v1/completions", body, key("overflowing")))
    assert "choices" in events[0] and "error" not in events[0]
    check_error(events[-1]["error"])
    assert all("error" not in event for event in events[:-1])
    answer = ask(server, "overflowing", "once")
    assert answer.status == 500
    check_error(answer.json["error"])
    # One token is prefill's alone.
    assert ask(server, "overflowing", "once", max_tokens=1).status == 200
    failed = 4
    # Neighbours in the same steps and pools, and in the other lanes, over pages that held what is no number.
    asked = [("poisoned", f"{n} Z" * (n + 1), None) for n in range(8)] + [("overflowing", f"{n}", None) for n in range(4)]
    asked += [(lane, prompt, expected) for prompt, expected in alone.items() for lane in ("good", "poisoned")] * 4
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as workers:
            answers = list(workers.map(lambda case: ask(server, case[0], case[1]), asked))
        for (lane, prompt, expected), answer in zip(asked, answers):
            if expected is None:
                assert answer.status == 500, (lane, prompt, answer.body)
                check_error(answer.json["error"])
                failed += 1
            else:
                assert (answer.status, text(answer)) == (200, expected), (lane, prompt)
    server.wait_for(lambda: server.pages_in_use() == 0)
    assert server.metric("millrace_pool_pages", state="quarantined") == 0
    assert server.metric("millrace_outputs_not_finite_total") == failed
    assert server.metric("millrace_sequences_failed_total") == failed
    assert server.metric("vllm:request_success_total", finished_reason="error") == failed
    log = server.log()
    assert "not finite" in log and 'lane="overflowing"' in log and 'lane="poisoned"' in log and 'lane="good"' not in log
    assert server.get("/ready").status == 200

"""What a client may not do, and how it is told: status, envelope, and a server that lives on."""

import json
import socket
import time

import pytest

ENVELOPE = {"message", "type", "param", "code"}


def check(answer, status, param=None, code=None):
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert set(error) == ENVELOPE and error["message"]
    assert error["code"] is None or isinstance(error["code"], str)
    if param:
        # The field, or a place inside it: `messages[0].content[0].type`.
        assert error["param"].partition("[")[0] == param
    if code:
        assert error["code"] == code
    assert b"panicked" not in answer.body


CHAT = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "abc"}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"n": 2**31}, "n"),
        ({"stop": [["x"]]}, "stop"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "hi"}]}, "messages"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_fields_are_400_and_named(server, change, param):
    check(server.post("/v1/chat/completions", CHAT | change), 400, param)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"model": "\\ud800"}', b"[" * 100_000, b'{"temperature": 1e999}', b'{"n": NaN}'],
)
def test_bodies_that_are_no_request_are_400(server, body):
    check(server.post("/v1/chat/completions", body), 400)


@pytest.mark.parametrize("prompt", [[49152], [-1], [[1], [2]], [], [[]], {"a": 1}, [1, "a"]])
def test_bad_prompts_are_400(server, prompt):
    check(server.complete(prompt), 400)


def test_other_statuses(server):
    check(server.post("/v1/chat/completions", CHAT | {"model": "gpt-4"}), 404, code="model_not_found")
    check(server.get("/v1/nothing"), 404)
    check(server.get("/v1/chat/completions"), 405)
    check(server.post("/v1/chat/completions", CHAT, {"Content-Type": "text/plain"}), 415)
    check(server.post("/v1/chat/completions", CHAT, {"Content-Type": "application/x-www-form-urlencoded"}), 415)
    check(server.post("/v1/chat/completions", CHAT, {"Content-Type": "application/json; charset=latin1"}), 415)
    utf8 = {"Content-Type": 'application/json; charset="UTF-8"'}
    assert server.post("/v1/chat/completions", CHAT | {"max_tokens": 1}, utf8).status == 200
    check(server.post("/v1/chat/completions", CHAT, {"Origin": "https://evil.example"}), 403)
    check(server.post("/v1/chat/completions", CHAT, {"Content-Encoding": "gzip"}), 415)
    check(server.post("/v1/chat/completions", b'{"a":"' + b"x" * (64 << 20) + b'"}'), 413)


def test_the_context_is_a_bound_that_clients_can_read(server):
    answer = server.complete("word " * 9000)
    check(answer, 400, code="context_length_exceeded")
    assert "maximum context length is 8192 tokens" in answer.json["error"]["message"]
    prompt = server.chat("hi", max_tokens=1).json["usage"]["prompt_tokens"]
    for name in ("max_tokens", "max_completion_tokens"):
        answer = server.chat("hi", **{name: 8192})
        check(answer, 400, code="context_length_exceeded")
        told = f"you requested {prompt + 8192} tokens ({prompt} in the messages, 8192 in the completion)"
        assert told in answer.json["error"]["message"]


def exchange(server, request, half_close=False):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 99999999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"]
)
def test_a_body_that_says_it_is_too_large_is_refused_at_once(server, rest):
    began = time.monotonic()
    answer = exchange(server, HEAD + rest)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer and b'"code":"request_too_large"' in answer
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_only_ends_its_sending_has_its_answer(server, stream):
    body = json.dumps(CHAT | {"max_tokens": 64, "stream": stream, "temperature": 0}).encode()
    answer = exchange(server, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, half_close=True)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"data: [DONE]" if stream else b'"finish_reason"') in answer


def test_null_means_absent_and_unknown_fields_are_ignored(server):
    nulls = {k: None for k in ("stop", "logprobs", "seed", "top_p", "max_tokens", "tools", "user", "stream_options")}
    answer = server.post("/v1/chat/completions", CHAT | nulls | {"max_tokens": 2, "made_up": 1, "tool_choice": "none"})
    assert answer.status == 200, answer.body


def test_content_may_be_parts(server):
    parts = [{"type": "text", "text": "What is the largest ocean "}, {"type": "text", "text": "on Earth?"}]
    answer = server.chat(parts, max_tokens=4)
    assert answer.status == 200
    whole = server.chat("What is the largest ocean on Earth?", max_tokens=4)
    assert answer.json["usage"] == whole.json["usage"]


def test_headers_have_a_deadline(start):
    server = start(server="header_timeout_ms = 1000")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        received = b"".join(iter(lambda: slow.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 408 ") and b'"code":"request_timeout"' in received
    assert server.get("/health").status == 200


def test_unauthorised_without_a_key(start):
    import hashlib

    gold, bulk = "sk-gold-test", "sk-bulk-test"
    digest = lambda key: hashlib.sha256(key.encode()).hexdigest()
    tenants = f"""
[tenant.acme]
key_sha256 = "{digest(gold)}"
tier = "gold"
weight = 4

[tenant.batch]
key_sha256 = "{digest(bulk)}"
tier = "bulk"
"""
    server = start(extra=tenants)
    check(server.chat("hi"), 401)
    assert server.chat("hi").headers["WWW-Authenticate"] == "Bearer"
    check(server.chat("hi", {"Authorization": "Bearer wrong"}), 401)
    check(server.chat("hi", {"Authorization": "Bearer "}), 401)
    check(server.get("/v1/models"), 401)
    fingerprints = {}
    for name, key in (("gold", gold), ("bulk", bulk)):
        answer = server.chat("hi", {"Authorization": f"Bearer {key}"}, max_tokens=2)
        assert answer.status == 200, answer.body
        fingerprints[name] = answer.json["system_fingerprint"]
    # The precision policy serves gold exactly and bulk cheaply.
    assert fingerprints["gold"].startswith("exact/") and fingerprints["bulk"].startswith("fast/")
    assert gold not in server.log() and bulk not in server.log()


def test_a_config_is_judged_whole_before_anything_is_bound(tmp_path):
    import subprocess

    from conftest import BINARIES

    bad = tmp_path / "bad.toml"
    bad.write_text('[server]\nlisten = 7\nlisten_adress = "x"\n[lane.a]\nprefill = "nowhere"\ndecode = "p"\n[pool.p]\nstage = "cook"\n')
    result = subprocess.run([BINARIES / "millrace", "check", "-c", bad], capture_output=True, text=True, timeout=20)
    assert result.returncode == 2
    for part in ("server.listen", "listen_adress", "lane.a.prefill", "pool.p.stage"):
        assert part in result.stdout + result.stderr

"""What an operator does while traffic flows: swap policies, lose clients, overload, drain, lose a page."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import BINARIES, GUESTS, MODEL, ROOT, Server, free_port


def completions(server, prompts, **fields):
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as workers:
        return list(workers.map(lambda p: server.complete(p, **fields), prompts))


def swap(server, kind, component):
    data = component if isinstance(component, bytes) else (GUESTS / component).read_bytes()
    headers = {"Content-Type": "application/wasm"}
    return server.request("POST", f"{server.admin}/admin/policies/{kind}", data, headers)


def slot(server, kind):
    policies = server.request("GET", f"{server.admin}/admin/policies").json["policies"]
    return next(p for p in policies if p["kind"] == kind)


def first_token_order(server, count):
    """Who gets a first token when: a long prompt, `old`, then short ones that arrive while it is in prefill."""
    order, lock = [], threading.Lock()

    def ask(name, prompt):
        body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0, "max_tokens": 2}
        first = True
        for _ in server.stream("/v1/completions", body):
            if first:
                with lock:
                    order.append(name)
            first = False

    threads = [threading.Thread(target=ask, args=("old", "word " * 3800))]
    threads[0].start()
    time.sleep(0.3)
    for index in range(count):
        threads.append(threading.Thread(target=ask, args=(index, f"{index}: " + "once upon a time " * 20)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return order


def test_the_step_is_planned_by_the_component(start):
    """The fair order goes on with the oldest; a component that reverses the host's rows serves every newcomer before it."""
    server = start(pages=1024)
    fair = first_token_order(server, 4)
    assert swap(server, "schedule", "reverse-schedule.wasm").status == 200
    reverse = first_token_order(server, 4)
    assert fair[0] == "old", fair
    assert reverse[-1] == "old", reverse
    assert slot(server, "schedule")["calls"] > 0 and slot(server, "schedule")["fallbacks"] == 0


# A second lane of the same precision as `fast`, so that the route policy has a choice.
TWIN = """
[pool.twin-prefill]
stage = "prefill"
device = "cpu"
model = "smollm2"
recipe = "int8"
kv = "bf16"
pages = 64

[pool.twin-decode]
stage = "decode"
device = "cpu"
model = "smollm2"
recipe = "int4"
kv = "fp8"
pages = 64

[lane.twin]
prefill = "twin-prefill"
decode = "twin-decode"
"""


def test_a_route_component_in_toml_picks_the_lane(start):
    fingerprint = start(extra=TWIN).complete("hi", max_tokens=1).json["system_fingerprint"]
    assert fingerprint.startswith("fast/int8+kv-bf16/int4+kv-fp8/")
    server = start(extra=TWIN + f'[policy.route]\ncomponent = "{GUESTS / "other-lane-route.wasm"}"\n')
    fingerprint = server.complete("hi", max_tokens=1).json["system_fingerprint"]
    assert fingerprint.startswith("twin/int8+kv-bf16/int4+kv-fp8/")
    assert slot(server, "route")["fallbacks"] == 0


def test_swapping_the_schedule_while_requests_stream(server):
    """Swaps under load: none of the streams fails, all give what they give alone."""
    prompts = [f"Tell me about the number {n}." for n in range(8)]
    alone = [server.complete(p, max_tokens=48).json["choices"][0]["text"] for p in prompts]
    stop, swaps = threading.Event(), []

    def keep_swapping():
        builtin = json.loads(server.request("GET", f"{server.admin}/admin/policies").body)
        assert builtin["policies"]
        while not stop.is_set():
            swaps.append(swap(server, "schedule", "reverse-schedule.wasm").status)
            swaps.append(server.request("POST", f"{server.admin}/admin/policies/schedule/rollback", b"").status)

    swapper = threading.Thread(target=keep_swapping)
    swapper.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as workers:
            streamed = list(workers.map(lambda p: server.stream_text(p, max_tokens=48), prompts))
    finally:
        stop.set()
        swapper.join()
    assert streamed == alone
    assert set(swaps) == {200} and len(swaps) >= 2


def test_a_policy_that_traps_never_stops_serving(start):
    server = start()
    before = server.complete("The quick brown fox", max_tokens=8).json["choices"][0]["text"]
    assert swap(server, "schedule", "trap-schedule.wasm").status == 200
    answers = completions(server, ["The quick brown fox"] * 4, max_tokens=8)
    assert [a.json["choices"][0]["text"] for a in answers] == [before] * 4
    assert server.metric("millrace_policy_faults_total", kind="schedule", fault="trap") > 0


def test_a_policy_that_keeps_failing_is_rolled_back_and_the_log_says_so(start):
    server = start(extra="[policy.schedule]\nbreaker_backoff_ms = 1\n")
    assert swap(server, "schedule", "trap-schedule.wasm").status == 200
    assert slot(server, "schedule")["generation"] == 2

    def is_rolled_back():
        assert server.complete("The quick brown fox", max_tokens=8).status == 200
        return slot(server, "schedule")["origin"] == "built-in"

    server.wait_for(is_rolled_back, patience_s=60)
    assert slot(server, "schedule")["rollbacks"] == 1
    lines = [line for line in server.log().splitlines() if "rolled back" in line]
    assert len(lines) == 1, server.log()
    for part in ("WARN", "millrace::audit", "kind=schedule", "from_generation=2", 'from_origin="uploaded"', "to_generation=3",
                 'to_origin="built-in"', "reason=", "trap"):
        assert part in lines[0], (part, lines[0])


def test_a_component_that_is_none_is_refused_with_a_reason(server):
    for data in (b"", b"not wasm", b"\0asm\x01\0\0\0"):
        answer = swap(server, "schedule", data)
        assert answer.status == 400 and answer.json["error"]["message"], answer.body
    wrong = swap(server, "schedule", "other-lane-route.wasm")
    assert wrong.status == 400 and "schedule" in wrong.json["error"]["message"]
    assert server.complete("hi", max_tokens=1).status == 200


def test_a_client_that_leaves_frees_its_pages(server):
    server.wait_for(lambda: server.pages_in_use() == 0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"model": "smollm2-135m", "prompt": "Once upon a time", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline().startswith(b"data: ")
    assert server.pages_in_use() > 0
    answer.close()
    connection.close()
    server.wait_for(lambda: server.pages_in_use() == 0)
    server.wait_for(lambda: server.metric("vllm:num_requests_running") == 0)


def test_a_client_that_leaves_without_streaming_frees_its_pages(server):
    """Bug: a handler that does not stream was not cancelled with its connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"model": "smollm2-135m", "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    server.wait_for(lambda: server.pages_in_use() > 0)
    connection.close()
    server.wait_for(lambda: server.pages_in_use() == 0)


def test_the_queue_is_bounded(start):
    server = start(max_waiting=2, pages=128)
    answers = completions(server, [f"{n} " + "word " * 600 for n in range(24)], max_tokens=8)
    statuses = [a.status for a in answers]
    assert set(statuses) <= {200, 429} and 200 in statuses and 429 in statuses, statuses
    refused = next(a for a in answers if a.status == 429)
    assert int(refused.headers["Retry-After"]) >= 1 and refused.json["error"]["message"]
    server.wait_for(lambda: server.pages_in_use() == 0)
    assert server.complete("hi", max_tokens=1).status == 200


def test_a_flood_of_connections_locks_nobody_out(start):
    """With 256 files to open and 400 sockets that say nothing, probes and operators are answered, and clients once it is over."""
    server = start(files=256, server="header_timeout_ms = 600000")
    assert "server.max_connections = 1024" in server.log(), "says that the limit is in the way"
    flood = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(400)]
    for path in ("/live", "/ready", "/metrics"):
        assert server.get(path).status == 200
    assert server.request("GET", f"{server.admin}/admin/status").status == 200
    refused = server.complete("hi", max_tokens=1)
    assert refused.status == 429 and refused.headers["Retry-After"] == "1"
    for connection in flood:
        connection.close()
    server.wait_for(lambda: server.complete("hi", max_tokens=1).status == 200)


def test_probes_are_answered_during_a_long_prefill(start):
    """A prompt of many hundred tokens keeps both cores busy; /live and /ready do not wait for it."""
    server = start()
    prompt = " ".join(f"Item {n} of the list." for n in range(250))
    with concurrent.futures.ThreadPoolExecutor(1) as worker:
        answer = worker.submit(server.complete, prompt, max_tokens=1)
        server.wait_for(lambda: server.pages_in_use() > 0 or answer.done())
        probed = 0
        while not answer.done():
            assert [server.get(path).status for path in ("/live", "/ready")] == [200, 200]
            probed += not answer.done()
    assert answer.result().status == 200 and answer.result().json["usage"]["prompt_tokens"] > 1200
    assert probed > 0, "no probe was answered before the prompt was done"


def test_a_small_pool_preempts_and_the_answers_do_not_change(start):
    """24 pages for streams that want more: preempted ones recompute their prompt and replay their tokens."""
    server = start(pages=24)
    prompts = [f"Count up from {n}:" for n in range(6)]
    fields = dict(max_tokens=200, ignore_eos=True)
    alone = [server.complete(p, **fields).json["choices"][0]["text"] for p in prompts]
    together = [a.json["choices"][0]["text"] for a in completions(server, prompts, **fields)]
    assert together == alone
    assert server.metric("vllm:num_preemptions_total") > 0
    server.wait_for(lambda: server.pages_in_use() == 0)


def test_sigterm_drains(start):
    """While a request runs, new ones are told that the server goes; then the port is closed and the process ends."""
    server = start(server="drain_timeout_ms = 120000")
    chunks, failure = [], []

    def read():
        try:
            body = {"model": "smollm2-135m", "prompt": "Once upon a time", "max_tokens": 800, "ignore_eos": True}
            chunks.extend(server.stream("/v1/completions", body))
        except Exception as error:  # noqa: BLE001 - reported by the assertion below
            failure.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    server.wait_for(lambda: len(chunks) > 3)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: server.get("/ready").status == 503)
    refused = server.complete("hi", max_tokens=1)
    assert reader.is_alive(), "the drain was looked at while it lasted"
    assert (refused.status, refused.json["error"]["code"]) == (503, "server_draining")
    assert refused.headers["Retry-After"] == "5" and server.get("/live").status == 200
    reader.join()
    assert not failure, failure
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(30) == 0
    with pytest.raises(OSError):
        server.get("/live")


def test_a_page_taken_away_stops_that_request_alone(start):
    """A page is handed out again behind a running sequence's back: that stream ends in an error, before a token of the step is
    published; its neighbours finish with the tokens they give alone."""
    server = start(binary="millrace-faults")
    prompts = [f"Tell me about the number {n}." for n in range(4)]
    fields = dict(max_tokens=220, ignore_eos=True)
    alone = [server.complete(p, **fields).json["choices"][0]["text"] for p in prompts]
    results, stolen = {}, threading.Event()

    def read(index):
        text, error = "", None
        body = {"model": "smollm2-135m", "prompt": prompts[index], "temperature": 0, **fields}
        for chunk in server.stream("/v1/completions", body, {"X-Request-Id": f"stream-{index}"}):
            if "error" in chunk and chunk["error"]:
                error = chunk["error"]
            elif chunk["choices"]:
                text += chunk["choices"][0]["text"]
            if index == 1 and len(text) > 60 and not stolen.is_set():
                answer = server.request("POST", f"{server.admin}/admin/faults/steal-page", {"request": "stream-1"})
                assert answer.status == 200, answer.body
                stolen.set()
        results[index] = (text, error)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 2, 3):
        assert results[index] == (alone[index], None)
    text, error = results[1]
    assert error["code"] == "kv_page_mismatch"
    assert alone[1].startswith(text) and len(text) < len(alone[1])
    assert server.metric("millrace_kv_page_mismatches_total") == 1
    assert "no longer carried its tag" in server.log()
    # The stolen page stays under suspicion; everything else is free again, and serving goes on.
    server.wait_for(lambda: server.pages_in_use() == 1)
    assert server.complete(prompts[0], **fields).json["choices"][0]["text"] == alone[0]
    suspects = lambda: {
        pool["name"]: pool["suspect_pages"] for pool in server.request("GET", f"{server.admin}/admin/pools").json["pools"]
    }
    assert suspects() == {"fast-prefill": 0, "fast-decode": 1, "exact-prefill": 0, "exact-decode": 0}
    assert server.metric("millrace_pool_suspect_pages", pool="fast-decode") == 1
    # An operator takes it back into use.
    readmit = lambda: server.request("POST", f"{server.admin}/admin/pools/fast-decode/readmit", b"").json
    assert readmit() == {"pool": "fast-decode", "readmitted": 1}
    server.wait_for(lambda: server.pages_in_use() == 0)
    assert readmit() == {"pool": "fast-decode", "readmitted": 0}
    assert set(suspects().values()) == {0}
    assert re.search(r"millrace::audit.*suspect pages readmitted.*fast-decode.*pages=1", server.log()), server.log()[-2000:]
    assert server.complete(prompts[1], **fields).json["choices"][0]["text"] == alone[1]


def test_release_builds_have_no_faults(server):
    answer = server.request("POST", f"{server.admin}/admin/faults/steal-page", {"request": "x"})
    assert answer.status == 404


def test_metrics_are_prometheus_text_with_vllm_names(server):
    server.complete("hi", max_tokens=4)
    text = server.get("/metrics").body.decode()
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'[a-zA-Z_:][\w:]*(\{[^}]*\})? [-+.\deEInfNa]+', line), line
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:iteration_tokens_total_bucket",
        "millrace_kv_tag_checks_total",
        "millrace_policy_calls_total",
    ):
        assert re.search(rf"^{re.escape(name)}[{{ ]", text, re.M), name


def quickstart(*args, **variables):
    environment = os.environ | {"MILLRACE_BIN": str(BINARIES / "millrace")} | variables
    command = [ROOT / "examples" / "quickstart.sh", *args]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Pacific" in result.stdout and "lane fast" in result.stdout and "tok/s" in result.stdout
    return result.stdout


def test_the_quickstart_answers():
    quickstart("--once")


def test_the_quickstart_tells_where_the_server_that_it_leaves_is(tmp_path):
    """With a deployment of one's own too: its port and its model."""
    port = free_port()
    text = f'[server]\nlisten = "127.0.0.1:{port}"\nadmin_listen = "127.0.0.1:{free_port()}"\n'
    text += (ROOT / "examples" / "quickstart.toml").read_text().replace("smollm2-135m-instruct", "mine")
    config = tmp_path / "mine.toml"
    config.write_text(text.replace("~/.cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf", MODEL))
    said = quickstart(MILLRACE_CONFIG=str(config))
    try:
        assert f"curl -N http://127.0.0.1:{port}/v1/chat/completions" in said
        command = said[said.index("curl -N") : said.index("Stop it with")]
        answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert answer.stdout.rstrip().endswith("data: [DONE]") and '"model":"mine"' in answer.stdout, answer
    finally:
        os.kill(int(re.search(r"Stop it with: kill (\d+)", said)[1]), signal.SIGTERM)


def test_a_server_that_cannot_start_says_why(tmp_path):
    server = Server(tmp_path, extra='[policy.schedule]\ncomponent = "nowhere.wasm"\n')
    assert server.process.wait(60) == 1
    assert "nowhere.wasm" in server.log()

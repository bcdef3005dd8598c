"""Prefill and decode as processes of their own: the same answers, and what is left when one of them is killed."""

import concurrent.futures
import os
import re
import shutil
import signal
import threading
import time

import pytest
from conftest import BINARIES, GUESTS, MODEL, ROOT

POOLS = """
[model.smollm2]
name = "smollm2-135m"
path = "{model}"

[device.one]
threads = 1

[device.two]
threads = 1

[pool.prefill]
stage = "prefill"
process = {process}
device = "one"
recipe = "int8"
pages = 256

[pool.decode]
stage = "decode"
process = {process}
device = "two"
recipe = "int4"
kv = "{kv}"
pages = 256
max_sequences = 16

[lane.fast]
prefill = "prefill"
decode = "decode"
"""

PROMPTS = [f"Tell me something about the number {n}. " + "It is known that " * (7 * n) for n in range(1, 7)]


def pools(process, kv="fp8"):
    return POOLS.format(model=MODEL, process=str(process).lower(), kv=kv)


def one_process(kv="fp8"):
    """Both pools in one process, on one device: an in-process hand-off needs one."""
    return pools(False, kv).replace('device = "two"', 'device = "one"')


def processes(server):
    """Pid of each engine process, by pool, as the metrics tell."""
    text = server.get("/metrics").body.decode()
    found = re.findall(r'^millrace_engine_process_pid\{pool="([^"]+)"[^}]*\} (\d+)', text, re.M)
    return {pool: int(pid) for pool, pid in found}


def answers(server, tokens=24):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as workers:
        results = list(workers.map(lambda p: server.complete(p, max_tokens=tokens), PROMPTS))
    assert [r.status for r in results] == [200] * len(PROMPTS), [r.body for r in results]
    return [r.json["choices"][0]["text"] for r in results]


@pytest.mark.parametrize("kv", ["fp8", "bf16"])
def test_two_processes_answer_as_one_does(start, kv):
    alone = answers(start(pools=one_process(kv)))
    server = start(pools=pools(True, kv))
    assert answers(server) == alone
    assert set(processes(server)) == {"prefill", "decode"}
    assert server.metric("millrace_handoffs_total") > 0
    assert server.metric("millrace_link_connected") == 2
    server.wait_for(lambda: server.pages_in_use() == 0)


CLIENTS, KILLS = 6, 5


def load(server, stop, outcomes):
    """Asks until told to stop; notes what became of each request: its status, and the code of an error."""
    body = {"model": "smollm2-135m", "temperature": 0, "max_tokens": 48, "ignore_eos": True}
    turn = 0
    while not stop.is_set():
        turn += 1
        try:
            answer = server.post("/v1/completions", body | {"prompt": PROMPTS[turn % len(PROMPTS)]})
            outcomes.append((answer.status, answer.status != 200 and answer.json["error"]["code"]))
        except (OSError, ValueError, KeyError) as error:
            outcomes.append((repr(error), None))
        if outcomes[-1][0] != 200:
            time.sleep(0.02)


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_a_killed_engine_costs_its_requests_alone(start, victim):
    server = start(pools=pools(True))
    before = answers(server)
    survivor = "decode" if victim == "prefill" else "prefill"
    stop, outcomes = threading.Event(), []
    clients = [threading.Thread(target=load, args=(server, stop, outcomes)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    kept = processes(server)[survivor]
    back_s = []
    try:
        for turn in range(KILLS):
            time.sleep(0.2 + 0.13 * turn)
            pid = processes(server)[victim]
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            server.wait_for(lambda: processes(server).get(victim, pid) != pid, patience_s=20)
            server.wait_for(lambda: server.get("/ready").status == 200, patience_s=20)
            server.wait_for(lambda: server.complete("hi", max_tokens=1).status == 200, patience_s=20)
            back_s.append(time.monotonic() - killed)
    finally:
        stop.set()
        for client in clients:
            client.join()
    loading_ms = [int(ms) for ms in re.findall(r"loading_ms=(\d+)", server.log())]
    print(f"{victim}: serving again after {[round(s, 2) for s in back_s]} s, of which loading {loading_ms[4:]} ms")
    assert processes(server)[survivor] == kept, "the other engine went on"
    told = {outcome: outcomes.count(outcome) for outcome in outcomes}
    assert set(told) <= {(200, False), (500, "engine_error"), (503, "engine_unavailable")}, told
    assert told.get((200, False), 0) > 0, told
    # A process takes what it ran along: of each client the one request that it had there.
    assert told.get((500, "engine_error"), 0) <= CLIENTS * KILLS, told
    assert answers(server) == before
    server.wait_for(lambda: server.pages_in_use() == 0)
    server.wait_for(lambda: server.metric("vllm:num_requests_running") == 0)


def kill(server, pool):
    """Kills a pool's process."""
    os.kill(processes(server)[pool], signal.SIGKILL)


def test_a_signal_to_every_process_lets_requests_end(start):
    server = start(pools=pools(True))
    body = {"model": "smollm2-135m", "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    chunks = server.stream("/v1/completions", body)
    tokens = [next(chunks)]
    for pid in [*processes(server).values(), server.process.pid]:
        os.kill(pid, signal.SIGTERM)
    tokens += chunks
    assert tokens[-1]["choices"][0]["finish_reason"] == "length", tokens[-1]
    assert server.process.wait(30) == 0, server.log()


def test_an_engine_is_started_again_from_the_program_that_runs(start, tmp_path):
    program = tmp_path / "millrace"
    shutil.copy2(BINARIES / "millrace", program)
    server = start(binary=program, pools=pools(True))
    before = answers(server)
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho another program is here now >&2\nexit 1\n")
    other.chmod(0o755)
    other.rename(program)
    kill(server, "decode")
    server.wait_for(lambda: server.metric("millrace_engine_process_starts_total", pool="decode") == 2)
    server.wait_for(lambda: server.get("/ready").status == 200, patience_s=60)
    assert answers(server) == before
    assert "another program" not in server.log()


def test_an_engine_of_a_changed_configuration_is_refused(start):
    server = start(pools=pools(True))
    before, text = answers(server), server.config.read_text()
    server.config.write_text(text.replace("max_sequences = 16", "max_sequences = 4"))
    kill(server, "decode")
    server.wait_for(lambda: "the deployment's file" in server.log(), patience_s=60)
    assert re.search(r"file \S+ changed: what it says of pool `decode`", server.log())
    answer = server.complete("hi", max_tokens=1)
    assert (answer.status, answer.json["error"]["code"]) == (503, "engine_unavailable"), answer.body
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    server.config.write_text("# put back\n" + text)
    server.wait_for(lambda: server.get("/ready").status == 200, patience_s=60)
    assert answers(server) == before


def test_a_process_is_told_to_readmit_and_its_log_says_how_many(start):
    server = start(pools=pools(True))
    answer = server.request("POST", f"{server.admin}/admin/pools/decode/readmit", b"")
    assert answer.status == 200 and answer.json["readmitted"] is None and "told" in answer.json, answer.body
    server.wait_for(lambda: re.search(r"suspect pages readmitted.*pages=0", server.log()))


def test_a_trial_of_a_schedule_that_no_engine_here_asks_is_refused(start):
    server = start(pools=pools(True))
    in_force = server.request("GET", f"{server.admin}/admin/policies").json["policies"][2]["sha256"]
    guest = (GUESTS / "reverse-schedule.wasm").read_bytes()
    headers = {"Content-Type": "application/wasm"}
    answer = server.request("POST", f"{server.admin}/admin/policies/schedule/shadow", guest, headers)
    assert answer.status == 409 and b"process of its own" in answer.body, answer.body
    assert server.request("GET", f"{server.admin}/admin/policies").json["policies"][2]["sha256"] == in_force
    # What decides in the server is on trial as ever.
    route = (ROOT / "plugins/dist/route.wasm").read_bytes()
    assert server.request("POST", f"{server.admin}/admin/policies/route/shadow", route, headers).status == 200
    assert server.complete("once upon a time", max_tokens=4).status == 200


def test_the_server_and_each_engine_record_on_their_own(start, tmp_path):
    directory = tmp_path / "recordings"
    server = start(pools=pools(True), extra=f'[policy.record]\ndirectory = "{directory}"\n')
    answers(server, tokens=8)
    server.stop()
    for trace in ("route.trace", "precision.trace", "prefill/schedule.trace", "decode/schedule.trace"):
        assert '"call"' in (directory / trace).read_text(), trace
    assert not list(directory.rglob("*.previous.trace"))
    # Engines ask for a schedule and for nothing else.
    assert {trace.name for pool in ("prefill", "decode") for trace in (directory / pool).iterdir()} == {"schedule.trace"}


def test_engines_end_with_their_server(start):
    server = start(pools=pools(True))
    pids = list(processes(server).values())
    server.process.kill()
    server.process.wait()

    def gone(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # A container without an init keeps the dead, if not for long.
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, "an engine process is left"
        time.sleep(0.05)

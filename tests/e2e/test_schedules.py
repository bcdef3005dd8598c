"""The schedule policy where pools are processes of their own: swapped, rolled back, refused and watched while requests run, and there
again when a process is."""

import hashlib
import threading

import pytest
from conftest import GUESTS, ROOT
from test_processes import PROMPTS, answers, kill, pools, processes

HEADERS = {"Content-Type": "application/wasm"}


def guest(name):
    source = (GUESTS / f"{name}.wasm").read_bytes()
    return source, hashlib.sha256(source).hexdigest()


def ask(server, path, source=b""):
    return server.request("POST", f"{server.admin}/admin/policies/schedule{path}", source, HEADERS)


def schedule(server):
    slots = server.request("GET", f"{server.admin}/admin/policies").json["policies"]
    return next(slot for slot in slots if slot["kind"] == "schedule")


def there(server):
    """Generation and digest of what really runs in each process."""
    return {row["pool"]: (row["generation"], row["sha256"]) for row in schedule(server)["processes"]}


def both(generation, digest):
    return {pool: (generation, digest) for pool in ("prefill", "decode")}


def test_a_schedule_is_swapped_and_rolled_back_in_every_process(start):
    server = start(pools=pools(True))
    first = schedule(server)
    builtin = first["sha256"]
    server.wait_for(lambda: there(server) == both(1, builtin))
    before = answers(server)
    source, digest = guest("reverse-schedule")
    stop, failed = threading.Event(), []

    def load():
        while not stop.is_set():
            answer = server.complete(PROMPTS[1], max_tokens=16)
            if answer.status != 200:
                failed.append(answer.body)

    clients = [threading.Thread(target=load) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        swapped = ask(server, "", source)
        assert swapped.status == 200 and swapped.json["generation"] == 2, swapped.body
        assert there(server) == both(2, digest), "in force when the call returns"
        server.wait_for(lambda: all(row["proven"] for row in schedule(server)["processes"]), patience_s=60)
        other, other_digest = guest("counter-schedule")
        assert ask(server, "", other).status == 200
        assert there(server) == both(3, other_digest)
        assert ask(server, "/rollback").status == 200
        assert there(server) == both(4, digest), "what has proven itself there is returned to"
        assert ask(server, "/builtin").status == 200
        assert there(server) == both(5, builtin)
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert not failed, failed[:3]
    assert answers(server) == before, "a schedule changes no token"
    rows = schedule(server)["processes"]
    assert all(row["up"] and row["faults"] == 0 and row["calls"] > 0 for row in rows), rows
    assert ask(server, "/rollback").status == 409


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_a_process_that_is_started_again_runs_what_is_in_force(start, victim):
    server = start(pools=pools(True))
    source, digest = guest("reverse-schedule")
    assert ask(server, "", source).status == 200
    pid = processes(server)[victim]
    kill(server, victim)
    server.wait_for(lambda: processes(server).get(victim, pid) not in (pid, 0), patience_s=60)
    server.wait_for(lambda: there(server) == both(2, digest), patience_s=60)
    server.wait_for(lambda: server.complete("hi", max_tokens=1).status == 200, patience_s=20)
    assert ask(server, "/builtin").status == 200
    pid = processes(server)[victim]
    kill(server, victim)
    server.wait_for(lambda: processes(server).get(victim, pid) not in (pid, 0), patience_s=60)
    server.wait_for(lambda: there(server) == both(3, schedule(server)["sha256"]), patience_s=60)


def test_what_is_refused_is_in_force_nowhere(start):
    server = start(pools=pools(True))
    builtin = schedule(server)["sha256"]
    server.wait_for(lambda: there(server) == both(1, builtin))
    refused = ask(server, "", b"no component")
    assert refused.status == 400 and refused.json["error"]["code"] == "policy_refused", refused.body
    pinned = server.request(
        "POST", f"{server.admin}/admin/policies/schedule", guest("reverse-schedule")[0], HEADERS | {"x-sha256": "0" * 64}
    )
    assert pinned.status == 400, pinned.body
    assert there(server) == both(1, builtin)


def test_a_policy_that_only_fails_is_given_up_by_each_process_and_seen(start):
    server = start(pools=pools(True), extra="[policy.schedule]\nbreaker_backoff_ms = 1\n")
    builtin = schedule(server)["sha256"]
    assert ask(server, "", guest("trap-schedule")[0]).status == 200

    def given_up():
        assert server.complete(PROMPTS[2], max_tokens=16).status == 200
        return there(server) == both(None, builtin)

    server.wait_for(given_up, patience_s=60)
    assert all(row["faults"] > 0 for row in schedule(server)["processes"])
    assert ask(server, "/builtin").status == 200
    assert there(server) == both(3, builtin)


def test_a_watched_file_reaches_the_processes_and_a_broken_one_keeps_none_down(start, tmp_path):
    watched = tmp_path / "watched.wasm"

    def becomes(component):
        new = tmp_path / "new.wasm"
        new.write_bytes(component)
        new.rename(watched)

    becomes((ROOT / "plugins/dist/fcfs-schedule.wasm").read_bytes())
    server = start(pools=pools(True), extra=f'[policy.schedule]\ncomponent = "{watched}"\nwatch = true\n')
    source, digest = guest("reverse-schedule")
    becomes(source)
    server.wait_for(lambda: there(server) == both(2, digest), patience_s=30)
    becomes(b"no component at all")
    server.wait_for(lambda: "not WebAssembly" in server.log())
    kill(server, "decode")
    server.wait_for(lambda: server.metric("millrace_engine_process_starts_total", pool="decode") == 2)
    server.wait_for(lambda: there(server) == both(2, digest), patience_s=60)
    assert "begins with the built-in" in server.log()
    server.wait_for(lambda: server.complete("once upon a time", max_tokens=4).status == 200)

"""Every guest of tests/guests under live traffic: no request fails, log and metric name the reason, and memory comes back."""

import contextlib
import signal
import subprocess
import threading

import pytest
from conftest import BINARIES, GUESTS, ROOT
from test_commands import millrace
from test_operations import slot, swap
from test_policies import kept

# In service: what becomes of its answers. `slow` is too late for a short step, or for its deadline.
FAULTS = {
    "trap-schedule": ("trap",),
    "loop-schedule": ("timeout",),
    "tail-loop-schedule": ("timeout",),
    "recurse-schedule": ("trap",),
    "bomb-schedule": ("memory",),
    "table-schedule": ("memory",),
    "range-schedule": ("invalid",),
    "twice-schedule": ("invalid",),
    "huge-schedule": ("invalid",),
    "wild-schedule": ("invalid",),
    "loud-schedule": ("invalid",),
    "slow-schedule": ("timeout", "late"),
    "flaky-schedule": ("trap", "timeout"),
    "range-precision": ("invalid",),
    "long-route": ("invalid",),
    # Held as long as may be, then once more.
    "hold-route": ("invalid",),
}
# In service: what becomes of what it is told beside its decisions.
BESIDE = {"trap-feedback-schedule": "trap", "loop-feedback-schedule": "timeout"}
# They decide well; the metric tells what the host did not take, if anything.
HARMLESS = {
    "reverse-schedule": None,
    "other-lane-route": None,
    "counter-schedule": None,
    "memory-schedule": None,
    "nan-schedule": None,
    "names-schedule": None,
    "state-schedule": None,
    "flood-schedule": "millrace_policy_log_lines_dropped_total",
    "flood-feedback-schedule": "millrace_policy_log_lines_dropped_total",
    "trap-handover-schedule": None,
    "flood-handover-schedule": None,
    "loop-handover-schedule": None,
}
# Refused before they serve, for this reason.
REFUSED = {
    "loop-start-schedule": "timeout",
    "loop-init-schedule": "`init` failed: timeout",
    "loop-check-schedule": "`check-config` failed: timeout",
    "refuse-init-schedule": "refuses to start",
    "refuse-config-schedule": "finds fault with its configuration",
    "trap-trial-schedule": "trial decision",
}
# From one policy to the next: whose `save`, or whose `restore`, fails how.
HANDOVERS = [
    ("trap-handover-schedule", "memory-schedule", "trap"),
    ("flood-handover-schedule", "memory-schedule", "invalid"),
    ("memory-schedule", "loop-handover-schedule", "timeout"),
]
# A trap for every step takes fresh instances, a swap some code: all of it is bounded.
MOST_MIB = 96


def guest(name):
    return (GUESTS / f"{name}.wasm").read_bytes()


def kind_of(name):
    return name.rpartition("-")[2]


@contextlib.contextmanager
def traffic(server):
    """Some clients that ask all the while; the answers' statuses."""
    statuses, done = [], threading.Event()

    def ask(number):
        while not done.is_set():
            statuses.append(server.complete(f"{number}: once upon a time", max_tokens=6).status)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        done.set()
        for thread in threads:
            thread.join()


def faults(server, kind, labels):
    return sum(server.metric("millrace_policy_faults_total", kind=kind, fault=fault) for fault in labels)


def beside(server, call, result):
    return server.metric("millrace_policy_beside_calls_total", kind="schedule", call=call, result=result)


def told(server, kind, reasons):
    """Whether the log has a line about a fault of the policy that was put in force last."""
    lines = server.log().rpartition("policy replaced")[2].splitlines()
    return any(f"kind={kind}" in line and f"reason={reason}" in line for line in lines for reason in reasons)


def returned(server, kind):
    assert server.request("POST", f"{server.admin}/admin/policies/{kind}/builtin", b"").status == 200


def put(server, name):
    answer = swap(server, kind_of(name), guest(name))
    assert answer.status == 200, f"{name}: {answer.body}"


def misbehave(server, name, fault_labels):
    kind = kind_of(name)
    before = faults(server, kind, fault_labels)
    put(server, name)
    server.wait_for(lambda: faults(server, kind, fault_labels) > before)
    if "late" not in fault_labels:
        server.wait_for(lambda: told(server, kind, fault_labels))
    returned(server, kind)


def mishear(server, name, reason):
    before = beside(server, "feedback", reason)
    put(server, name)
    server.wait_for(lambda: beside(server, "feedback", reason) > before)
    server.wait_for(lambda: told(server, "schedule", [reason]))
    policy = slot(server, "schedule")
    assert policy["name"] == "test-guest" and policy["breaker"] == "closed", policy
    returned(server, "schedule")


def behave(server, name, dropped):
    kind = kind_of(name)
    before = dropped and server.metric(dropped, kind=kind)
    put(server, name)
    generation, calls = slot(server, kind)["generation"], slot(server, kind)["calls"]
    server.wait_for(lambda: slot(server, kind)["calls"] >= calls + 4)
    if dropped:
        server.wait_for(lambda: server.metric(dropped, kind=kind) > 0)
    policy = slot(server, kind)
    assert policy["generation"] == generation and policy["breaker"] == "closed", f"{name}: {policy}, {before}"
    returned(server, kind)


def hand_over(server, old, new, reason):
    put(server, old)
    calls = slot(server, "schedule")["calls"]
    server.wait_for(lambda: slot(server, "schedule")["calls"] >= calls + 4)
    before = beside(server, "handover", reason)
    if old == "memory-schedule":
        server.wait_for(lambda: slot(server, "schedule")["feedback"]["ok"] > 0)
    put(server, new)
    assert beside(server, "handover", reason) == before + 1
    assert f"reason={reason}" in server.log()
    assert slot(server, "schedule")["handover"]["calls"] >= 1
    returned(server, "schedule")


def refuse(server, name, component, says):
    answer = swap(server, "schedule", component)
    assert answer.status == 400 and says in answer.body.decode(), f"{name}: {answer.status} {answer.body}"
    refusals = [line for line in server.log().splitlines() if "policy refused; the one in force stays" in line]
    assert says in refusals[-1], f"{name}: {refusals[-1]}"


def test_every_guest_is_listed_here():
    here = set(FAULTS) | set(BESIDE) | set(HARMLESS) | set(REFUSED)
    assert here == {path.stem for path in GUESTS.glob("*.wasm")}


def test_whatever_is_uploaded_requests_go_on(start):
    # A host that was built for debugging takes its time over a flood.
    limits = "init_deadline_ms = 200\ndeadline_us = 20000\nmax_component_mib"
    sizes = {"route": 2, "schedule": 1, "precision": 1}
    limits = "".join(f"[policy.{kind}]\n{limits} = {mib}\n" for kind, mib in sizes.items())
    limits = limits.replace("[policy.route]\n", "[policy.route]\nmax_held_ms = 300\n")
    server = start(pages=64, extra=limits)
    with traffic(server) as statuses:
        server.wait_for(lambda: len(statuses) >= 100, patience_s=60)
        before = kept(server)
        for name, labels in FAULTS.items():
            misbehave(server, name, labels)
        for name, reason in BESIDE.items():
            mishear(server, name, reason)
        for name, dropped in HARMLESS.items():
            behave(server, name, dropped)
        for old, new, reason in HANDOVERS:
            hand_over(server, old, new, reason)
        for name, says in REFUSED.items():
            refuse(server, name, guest(name), says)
        counter = guest("counter-schedule")
        refuse(server, "another world", guest("long-route"), "is no schedule policy")
        refuse(server, "a newer world", counter.replace(b"@0.1.0", b"@0.2.0"), "this host has millrace:policy@0.1.0")
        refuse(server, "a file system", counter.replace(b"policy/random", b"policy/filing"), "which no policy gets")
        refuse(server, "no component", b"\0asm\r\0\1\0 and nothing else", "does not compile")
        refuse(server, "too large", counter + bytes(1 << 20), "the limit is 1048576")
        after = kept(server)
    assert set(statuses) == {200}, {status: statuses.count(status) for status in set(statuses)}
    assert after[0] - before[0] < MOST_MIB, f"{before} to {after}"
    assert abs(after[1] - before[1]) <= 4 and abs(after[2] - before[2]) <= 8, f"{before} to {after}"
    assert server.stop() == 0


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_named_in_the_configuration_and_refused_is_told_before_anything_is_served(name, tmp_path):
    deployment = (ROOT / "examples/quickstart.toml").read_text()
    config = tmp_path / "deploy.toml"
    component = GUESTS / f"{name}.wasm"
    config.write_text(f'{deployment}\n[policy.schedule]\ncomponent = "{component}"\ninit_deadline_ms = 200\n')
    done = subprocess.run([BINARIES / "millrace", "serve", "-c", config], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and REFUSED[name] in done.stderr + done.stdout, done.stderr
    checked = millrace("policy", "check", component, "-c", config)
    assert checked.returncode != 0 and REFUSED[name] in checked.stderr, checked.stderr


def test_what_a_route_holds_is_told_when_the_server_goes(start):
    """It is in no engine, whose end would end it."""
    server = start(server="drain_timeout_ms = 500")
    put(server, "hold-route")
    answers = []
    reader = threading.Thread(target=lambda: answers.append(server.complete("held", max_tokens=1)))
    reader.start()
    server.wait_for(lambda: server.metric("vllm:num_requests_waiting") >= 1)
    server.process.send_signal(signal.SIGTERM)
    reader.join(20)
    assert [(answer.status, answer.json["error"]["code"]) for answer in answers] == [(503, "server_draining")]
    assert server.process.wait(20) == 0

"""Kept prompts over HTTP: what a tenant's second request saves, what another tenant's must not, and what /metrics says of it."""

import hashlib
import time

import pytest
from conftest import MODEL, POOLS

KEYS = {name: f"key-of-{name}" for name in ("ann", "bob", "red", "blue")}
GROUPS = {"red": "paints", "blue": "paints"}
PROMPT = "The river ran past the mill, under the old stone bridge and on through the meadows to the sea. " * 12


def headers(tenant):
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


def tenants():
    text = ""
    for name, key in KEYS.items():
        text += f'\n[tenant.{name}]\nkey_sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\nallowed_lanes = ["exact"]\n'
        if name in GROUPS:
            text += f'trust_group = "{GROUPS[name]}"\n'
    return text


@pytest.fixture
def keeping(start):
    pools = POOLS.format(model=MODEL, pages=512, max_waiting=64)
    pools = pools.replace("[pool.exact-prefill]", "[pool.exact-prefill]\nprefix_cache = true")
    return start(pools=pools, extra=tenants())


def ask(server, tenant, prompt=PROMPT, **fields):
    """The answer's text, its usage, and the prompt tokens that the request had computed."""
    before = server.metric("millrace_computed_tokens_total", pool="exact-prefill")
    answer = server.complete(prompt, headers(tenant), max_tokens=8, ignore_eos=True, **fields)
    assert answer.status == 200, answer.body
    computed = server.metric("millrace_computed_tokens_total", pool="exact-prefill") - before
    usage = answer.json["usage"]
    return answer.json["choices"][0]["text"], usage, computed


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_that_was_there_is_not_computed_again(keeping):
    text, usage, computed = ask(keeping, "ann")
    tokens = usage["prompt_tokens"]
    assert tokens > 200 and (cached(usage), computed) == (0, tokens)
    again, usage, computed = ask(keeping, "ann")
    whole_pages = (tokens - 1) // 32 * 32
    assert (cached(usage), computed) == (whole_pages, tokens - whole_pages)
    assert again == text
    _, usage, _ = ask(keeping, "ann", PROMPT + "Then the miller said")
    assert cached(usage) in (whole_pages, whole_pages + 32), "a longer prompt begins behind it"
    assert keeping.metric("vllm:prefix_cache_hits_total") >= 2 * whole_pages
    assert keeping.metric("vllm:prefix_cache_queries_total") > keeping.metric("vllm:prefix_cache_hits_total")
    kept = keeping.metric("millrace_prefix_cached_pages", pool="exact-prefill")
    assert kept >= whole_pages / 32
    keeping.wait_for(lambda: keeping.metric("millrace_pool_pages", state="pinned") == 0)
    assert keeping.metric("millrace_pool_pages", state="evictable") == kept


def test_the_stream_tells_the_same_usage(keeping):
    _, usage, _ = ask(keeping, "ann")
    body = {"model": "smollm2-135m", "prompt": PROMPT, "max_tokens": 4, "stream_options": {"include_usage": True}}
    last = [chunk for chunk in keeping.stream("/v1/completions", body, headers("ann")) if chunk.get("usage")][-1]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 32 * 32


def test_another_tenant_computes_as_much_as_if_nobody_had_asked(keeping):
    _, alone, computed_alone = ask(keeping, "bob")
    tokens = alone["prompt_tokens"]
    for tenant in ("ann", "red"):
        _, usage, computed = ask(keeping, tenant)
        assert (cached(usage), computed) == (0, computed_alone) == (0, tokens), tenant
    # The control: it was there to be found, by the tenant itself and by its group.
    for tenant in ("bob", "ann", "blue", "red"):
        _, usage, computed = ask(keeping, tenant)
        assert cached(usage) > 0 and computed < 64, tenant


def test_nothing_that_a_client_sends_moves_it_into_another_scope(keeping):
    answered = 0
    for number, fields in enumerate(({"user": "ann"}, {"prompt_cache_key": "ann"}, {"cache_salt": "ann"}, {})):
        # Each begins otherwise, so that none finds the one before.
        prompt = f"{number} {PROMPT}"
        ask(keeping, "ann", prompt)
        body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0, "max_tokens": 4} | fields
        answer = keeping.post("/v1/completions", body, headers("bob") | {"X-Tenant-Id": "ann", "X-Session-Id": "ann"})
        answered += answer.status == 200
        assert answer.status in (200, 400), answer.body
        assert keeping.metric("vllm:prefix_cache_hits_total") == 0, fields
    assert answered >= 2


def test_off_is_the_default(start):
    server = start()
    for _ in range(2):
        answer = server.complete(PROMPT, max_tokens=4)
        assert cached(answer.json["usage"]) == 0
    assert server.metric("vllm:prefix_cache_queries_total") == 0
    assert server.metric("millrace_pool_pages", state="evictable") == 0


TWINS = """
[model.smollm2]
name = "smollm2-135m"
path = "{model}"
[device.cpu]
kind = "cpu"
""" + "".join(
    f"""
[pool.{lane}-prefill]
stage = "prefill"
recipe = "int8"
kv = "bf16"
pages = 256
prefix_cache = true
[pool.{lane}-decode]
stage = "decode"
recipe = "int4"
kv = "fp8"
pages = 256
[lane.{lane}]
prefill = "{lane}-prefill"
decode = "{lane}-decode"
"""
    for lane in ("first", "second")
)


def lane_of(server, tenant, prompt):
    """The lane that served a prompt, and the prompt tokens that it had cached."""
    answer = server.complete(prompt, headers(tenant), max_tokens=2)
    assert answer.status == 200, answer.body
    return answer.json["system_fingerprint"].partition("/")[0], cached(answer.json["usage"])


@pytest.mark.parametrize("process", ["false", "true"])
def test_affinity_goes_where_the_prompt_is_kept_and_only_the_own_one(start, process):
    everywhere = tenants().replace('allowed_lanes = ["exact"]\n', "")
    pools = TWINS.format(model=MODEL).replace("pages = 256", f"pages = 256\nprocess = {process}")
    pools = pools if process == "false" else pools.replace('kind = "cpu"', 'kind = "cpu"\nthreads = 1')
    server = start(pools=pools, extra=f'[policy.route]\ncomponent = "builtin:affinity"\n{everywhere}')
    running = lambda: server.metric("millrace_lane_sequences", lane="first", state="running")
    body = {"model": "smollm2-135m", "prompt": "It was", "max_tokens": 400, "ignore_eos": True}
    busy = server.stream("/v1/completions", body, headers("ann"))
    next(busy)
    server.wait_for(lambda: running() == 1)
    assert lane_of(server, "ann", PROMPT) == ("second", 0), "while the first lane is busy"
    busy.close()

    def idle(tenant, prompt):
        server.wait_for(lambda: server.metric("millrace_lane_sequences", state="running") == 0)
        # A process says once a second what it keeps.
        time.sleep(2.5 if process == "true" else 0)
        return lane_of(server, tenant, prompt)

    lane, found = idle("ann", PROMPT)
    assert lane == "second" and found > 100, "where it is kept, although both lanes are free"
    assert idle("ann", "Something else that nobody has asked before.")[0] == "first"
    assert idle("bob", PROMPT) == ("first", 0), "another tenant's prompts say nothing"
    assert idle("bob", PROMPT) == ("first", found)

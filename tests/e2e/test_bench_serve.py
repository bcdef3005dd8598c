"""`millrace bench serve` against a real server: the client's figures agree with each other and with the server's own counts."""

import json

from test_commands import millrace

PROMPT_TOKENS, MAX_TOKENS, REQUESTS, REPEATS = 64, 8, 4, 2
# What the chat template and one prompt's odd first word may add or take.
SLACK = 4


def bench(server, *args):
    size = ("--prompt-tokens", PROMPT_TOKENS, "--max-tokens", MAX_TOKENS, "--requests", REQUESTS, "--repeats", REPEATS)
    return millrace("bench", "serve", "--url", server.url, "--model", "smollm2-135m", *size, *args)


def test_bench_serve_agrees_with_the_server(server):
    tokens_before = server.metric("vllm:generation_tokens_total")
    result = bench(server, "--concurrency", "1,4", "--warm-up", 2, "--ttft-ms", 60000, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["calibrated"] and report["model"] == "smollm2-135m" and report["repeats"] == REPEATS
    assert [level["concurrency"] for level in report["results"]] == [1, 4]
    for level in report["results"]:
        assert level["requests"] == REQUESTS * REPEATS
        assert level["failures"] == level["warm_up_failures"] == {"total": 0, "kinds": []}
        assert level["output_tokens"] == REQUESTS * REPEATS * MAX_TOKENS and level["output_tokens_from"] == "usage"
        assert level["short_answers"] == level["whole_answers"] == 0
        assert abs(level["prompt_tokens"] - PROMPT_TOKENS) <= SLACK, level
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            medians = [level[name][percentile]["median"] for percentile in ("p50", "p95", "p99")]
            assert medians == sorted(medians) and medians[0] > 0, level
        for name in ("requests_per_second", "output_tokens_per_second", "wall_seconds", "client_cpu_seconds"):
            assert 0 < level[name]["min"] <= level[name]["median"] <= level[name]["max"], level
        assert level["ttft_ms"]["p50"]["median"] < level["e2e_ms"]["p50"]["median"]
        assert level["goodput"]["share"]["median"] == 1
    measured = 2 * (REQUESTS * REPEATS + 2) * MAX_TOKENS
    generated = server.metric("vllm:generation_tokens_total") - tokens_before
    # Beside the measured ones and the warm-up there are a few probes, of a few tokens each.
    assert measured < generated <= measured + 16, (generated, measured)


def test_bench_serve_tells_what_the_server_refuses(server):
    result = millrace("bench", "serve", "--url", server.url, "--model", "another-model")
    assert result.returncode == 1 and result.stdout == ""
    assert "status_404" in result.stderr and "`another-model` does not exist" in result.stderr

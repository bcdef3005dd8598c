"""Pools that take their weights from another checkpoint of the model."""

import shutil

import pytest

from conftest import MODEL, ROOT, Server

LANE = """
[pool.second-decode]
stage = "decode"
device = "cpu"
model = "smollm2"
checkpoint = "{checkpoint}"
recipe = "int4"
kv = "fp8"
pages = 64
max_sequences = 4

[lane.second]
prefill = "fast-prefill"
decode = "second-decode"

[policy.route]
component = "{guest}"
"""
OTHER_LANE = ROOT / "tests" / "guests" / "dist" / "other-lane-route.wasm"
QUESTION = {"model": "smollm2-135m", "temperature": 0, "max_tokens": 12,
            "messages": [{"role": "user", "content": "What is the largest ocean on Earth?"}]}


def test_decode_from_a_second_checkpoint_of_the_model(tmp_path):
    second = tmp_path / "second.gguf"
    shutil.copyfile(MODEL, second)
    server = Server(tmp_path, extra=LANE.format(checkpoint=second, guest=OTHER_LANE)).wait_ready()
    try:
        answers = [server.post("/v1/chat/completions", QUESTION).json for _ in range(2)]
        for answer in answers:
            assert "Pacific" in answer["choices"][0]["message"]["content"]
        assert str(second) in server.log()
        # Served from two checkpoints, the weights have a name of their own.
        digests = {answer["system_fingerprint"].split("/")[-1] for answer in answers}
        plain = Server(tmp_path).wait_ready()
        try:
            alone = plain.post("/v1/chat/completions", QUESTION).json["system_fingerprint"].split("/")[-1]
        finally:
            plain.process.kill()
        assert len(digests) == 1 and alone not in digests
    finally:
        server.process.kill()


@pytest.mark.parametrize("checkpoint, says", [
    (ROOT / "host/model/tests/data/llama-int4", "not the same model"),
    (ROOT / "host/model/tests/data/nothing-here", "nothing-here"),
])
def test_a_checkpoint_of_another_model_is_refused_before_a_port_is_bound(tmp_path, checkpoint, says):
    server = Server(tmp_path, extra=LANE.format(checkpoint=checkpoint, guest=OTHER_LANE))
    assert server.process.wait(timeout=60) == 1, server.log()
    assert says in server.log(), server.log()

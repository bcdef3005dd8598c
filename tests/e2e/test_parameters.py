"""Every parameter that the openai SDK knows is honoured, a label, or refused by name: none is silently ignored."""

import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat

HONOURED = {
    "messages", "prompt", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed",
    "stop", "prompt_cache_key",
}
# Whatever they hold, they ask nothing of the answer.
LABELS = {"user": "u", "safety_identifier": "s", "metadata": {"k": "v"}, "parallel_tool_calls": False}
# A value of each of the others that asks for something.
ASKS = {
    "audio": {"voice": "alloy", "format": "wav"},
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "logit_bias": {"5": 1},
    "logprobs": True,
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "n": 2,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "response_format": {"type": "json_object"},
    "service_tier": "priority",
    "store": True,
    "suffix": "x",
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "top_logprobs": 2,
    "verbosity": "low",
    "web_search_options": {},
}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
COMPLETION = ("/v1/completions", {"prompt": "hi", "max_tokens": 1})


def known(module):
    bases = (module.CompletionCreateParamsBase, module.CompletionCreateParamsStreaming)
    return set().union(*(base.__annotations__ for base in bases))


def test_the_lists_here_are_the_sdks():
    names = known(chat) | known(completion)
    assert names - HONOURED - LABELS.keys() - ASKS.keys() == set()
    assert len(names) > 30


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION], ids=["chat", "completion"])
@pytest.mark.parametrize("name", sorted(ASKS))
def test_what_is_not_honoured_is_refused_by_name(server, endpoint, name):
    path, body = endpoint
    answer = server.post(path, body | {name: ASKS[name]})
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (400, name, "unsupported_parameter"), answer.body
    assert f"`{name}`" in error["message"]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_labels_are_taken(server, endpoint):
    path, body = endpoint
    assert server.post(path, body | LABELS).status == 200

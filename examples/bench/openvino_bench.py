#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching on a GGUF file, in process: prompt and output tokens per second as JSON on the last line.

    PYTHON examples/bench/openvino_bench.py GGUF [--threads N] STAGE:TOKENS:STREAMS:DEPTH..

Needs a Python with openvino-genai. `prefill:512:1:0` is one prompt of 512 tokens, timed to its first output token.
`decode:64:8:128` is 8 streams behind prompts of 128 tokens; 64 tokens of each are timed, from the step after the one that gave the
last stream its first token. Prompts are scheduled before any decode step. Greedy, random tokens, each test warmed up once.
`whole:64:8:240` is 8 requests at once with prompts of 240 tokens and answers of 64: output tokens over all the time, prefill
included, with the scheduler's own defaults; what clients of a server would get without HTTP. It takes a run of its own.
"""

import argparse
import json
import time

import numpy
import openvino
import openvino_genai as genai

# Tokens of a cache block, and blocks of a stream beyond its tokens.
BLOCK, SPARE = 32, 2
VOCABULARY = range(100, 40_000)


def parse_test(text):
    stage, *numbers = text.split(":")
    tokens, streams, depth = map(int, numbers)
    if stage not in ("prefill", "decode", "whole") or min(tokens, streams) < 1:
        raise ValueError(text)
    return {"stage": stage, "tokens": tokens, "streams": streams, "depth": depth}


def scheduler(tests):
    config = genai.SchedulerConfig()
    config.enable_prefix_caching = False
    config.max_num_seqs = max(test["streams"] for test in tests)
    if any(test["stage"] != "whole" for test in tests):
        config.dynamic_split_fuse = False
        config.max_num_batched_tokens = max(512, *(test["tokens"] + test["depth"] for test in tests))
    config.num_kv_blocks = max(test["streams"] * ((test["tokens"] + test["depth"]) // BLOCK + SPARE) for test in tests) + SPARE
    return config


class Streams:
    """Requests that run together, and how many tokens each of them has given."""

    def __init__(self, pipeline, random, streams, prompt, output):
        self.pipeline = pipeline
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output, True, False
        draw = lambda: random.integers(VOCABULARY.start, VOCABULARY.stop, size=(1, prompt), dtype=numpy.int64)
        self.handles = [pipeline.add_request(i, openvino.Tensor(draw()), config) for i in range(streams)]
        self.given = [0] * streams

    def step(self):
        self.pipeline.step()
        for i, handle in enumerate(self.handles):
            while handle.can_read():
                self.given[i] += sum(len(output.generated_ids) for output in handle.read().values())

    def run_until(self, enough):
        while not enough(self.given) and self.pipeline.has_non_finished_requests():
            self.step()


def prefill(pipeline, random, test):
    began_s = time.perf_counter()
    Streams(pipeline, random, 1, test["tokens"], 1).run_until(lambda given: min(given) >= 1)
    return test["tokens"] / (time.perf_counter() - began_s)


def decode(pipeline, random, test):
    # An empty cache cannot be asked for.
    prompt = max(test["depth"], 8)
    # What the first streams give while the last are in prefill is not timed.
    streams = Streams(pipeline, random, test["streams"], prompt, test["tokens"] + 1)
    streams.run_until(lambda given: min(given) >= 1)
    before, began_s = sum(streams.given), time.perf_counter()
    streams.run_until(lambda given: max(given) > test["tokens"])
    rate = (sum(streams.given) - before) / (time.perf_counter() - began_s)
    streams.run_until(lambda given: min(given) > test["tokens"])
    return rate


def whole(pipeline, random, test):
    began_s = time.perf_counter()
    streams = Streams(pipeline, random, test["streams"], test["depth"], test["tokens"])
    streams.run_until(lambda given: min(given) >= test["tokens"])
    return sum(streams.given) / (time.perf_counter() - began_s)


MEASURES = {"prefill": prefill, "decode": decode, "whole": whole}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("tests", nargs="+", type=parse_test)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    began_s = time.perf_counter()
    pipeline = genai.ContinuousBatchingPipeline(args.gguf, scheduler(args.tests), "CPU", {"INFERENCE_NUM_THREADS": args.threads})
    load_s = time.perf_counter() - began_s
    random = numpy.random.default_rng(1)
    results = []
    for test in args.tests:
        measure = MEASURES[test["stage"]]
        measure(pipeline, random, test)
        results.append(test | {"tokens_per_second": measure(pipeline, random, test)})
    print(json.dumps({"version": genai.get_version(), "load_seconds": load_s, "results": results}))


if __name__ == "__main__":
    main()

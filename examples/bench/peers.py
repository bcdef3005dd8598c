"""The engines that are compared: their command lines for each group of tests, and the rates read out of what they print.

A group is what one program measures in one run. Starts nothing and keeps nothing.
"""

import collections
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
# For `PYTHON -c`.
ASK_OPENVINO = "import openvino as o, openvino_genai as g; print('openvino', o.get_version() + ', genai', g.get_version())"

Test = collections.namedtuple("Test", "group stage tokens streams depth")

# Rates count prompt tokens in prefill and the tokens of all streams in decode. Depth: tokens in each stream's cache beforehand.
TESTS = {
    "prefill-128": Test("single", "prefill", 128, 1, 0),
    "prefill-512": Test("single", "prefill", 512, 1, 0),
    "decode-1": Test("single", "decode", 128, 1, 0),
    "decode-8": Test("streams", "decode", 64, 8, 128),
    "decode-32": Test("streams", "decode", 64, 32, 128),
    "deep-1": Test("deep", "decode", 64, 1, 2048),
    "deep-8": Test("deep", "decode", 64, 8, 2048),
}
GROUPS = ("single", "streams", "deep")

NOTES = [
    "prefill-N: one prompt of N tokens. decode-N: N streams; one stream 128 tokens from an empty cache (Millrace: 8 tokens in it), "
    "more streams 64 tokens each behind 128. deep-N: N streams, 64 tokens each behind 2,048. Rates are those of all streams together.",
    "Millrace: `bench engine`, with scheduling, tag checks, hand-off and sampling in its times, each test warmed up once. llama.cpp "
    "and ik_llama.cpp: llama-bench, and llama-batched-bench for more streams and for depth; model evaluation alone. OpenVINO GenAI: "
    "openvino_bench.py, its continuous batching in process, sampling included.",
    "llama.cpp and ik_llama.cpp process one prompt for all streams of deep-8 (-pps). llama.cpp then copies it for each; in "
    "ik_llama.cpp all streams read the same copy, which is less work than the test asks of the others.",
]


class Unreadable(Exception):
    """A program's output without what was to be read in it."""


def listed(values):
    return ",".join(str(value) for value in values)


def only(tests, stage):
    return {name: test for name, test in tests.items() if test.stage == stage}


def complete(rates, tests, output):
    missing = [name for name in tests if name not in rates]
    if missing:
        raise Unreadable(f"no figures for {listed(missing)} in the output, which ends: {output.strip()[-200:]!r}")
    return rates


class Millrace:
    """`millrace bench engine`."""

    # Where `rates` finds its figures.
    prints = ("stdout",)
    # The fewest prompt tokens that leave a prefill test out: the command always has one.
    SHORTEST = 8

    def __init__(self, binary, kv):
        self.name, self.binary, self.kv = "Millrace", binary, kv

    def command(self, model, threads, tests):
        prefill, decode = only(tests, "prefill"), only(tests, "decode")
        output = max((test.tokens for test in decode.values()), default=4)
        depths = {max(test.depth, self.SHORTEST) for test in decode.values()} or {self.SHORTEST}
        arguments = ["-m", model.path, "-t", threads, "-r", 1, "--json", "-n", output, "--kv", self.kv]
        arguments += ["-p", listed([test.tokens for test in prefill.values()] or [self.SHORTEST])]
        arguments += ["-b", listed([test.streams for test in decode.values()] or [1]), "-d", listed(sorted(depths))]
        return [self.binary, "bench", "engine", *arguments, "--prefill-weights", model.prefill, "--decode-weights", model.decode]

    def rates(self, output, tests):
        rates = {}
        for row in json.loads(output)["results"]:
            for name, test in tests.items():
                decode = row["batch"] == test.streams and row["depth"] == max(test.depth, self.SHORTEST)
                if (row["test"], row["tokens"]) == (test.stage, test.tokens) and (test.stage == "prefill" or decode):
                    rates[name] = row["tokens_per_second"]["median"]
        return complete(rates, tests, output)


class Llama:
    """llama-bench and llama-batched-bench out of one directory, of llama.cpp or of ik_llama.cpp."""

    # ik_llama.cpp's llama-batched-bench has its table on the second.
    prints = ("stdout", "stderr")
    # By project and variant: arguments of llama-bench, arguments of llama-batched-bench.
    VARIANTS = {
        ("llama.cpp", ""): ([], []),
        ("llama.cpp", "flash-off"): (["-fa", "off"], ["-fa", "off"]),
        ("ik_llama.cpp", ""): ([], []),
        ("ik_llama.cpp", "repack"): (["-rtr", "1"], ["-rtr"]),
        ("ik_llama.cpp", "kv-q8"): (["-ctk", "q8_0", "-ctv", "q8_0"], ["-ctk", "q8_0", "-ctv", "q8_0"]),
    }

    def __init__(self, project, directory, variant=""):
        self.name = f"{project}, {variant}" if variant else project
        self.directory = pathlib.Path(directory)
        self.bench_arguments, self.batched_arguments = self.VARIANTS[project, variant]

    def command(self, model, threads, tests):
        if all(test.group == "single" for test in tests.values()):
            prompts = listed([test.tokens for test in only(tests, "prefill").values()] or [0])
            outputs = listed([test.tokens for test in only(tests, "decode").values()] or [0])
            arguments = ["-m", model.path, "-t", threads, "-p", prompts, "-n", outputs, "-r", 1, "-o", "json"]
            return [self.directory / "llama-bench", *arguments, *self.bench_arguments]
        any_test = next(iter(tests.values()))
        streams = [test.streams for test in tests.values()]
        context = max(streams) * (any_test.depth + any_test.tokens)
        arguments = ["-m", model.path, "-t", threads, "-c", context, "-npp", any_test.depth, "-ntg", any_test.tokens]
        arguments += ["-npl", listed(streams), *(["-pps"] if any_test.group == "deep" else [])]
        return [self.directory / "llama-batched-bench", *arguments, *self.batched_arguments]

    def rates(self, output, tests):
        single = all(test.group == "single" for test in tests.values())
        rates = llama_bench(output, tests) if single else batched_bench(output, tests)
        return complete(rates, tests, output)


def llama_bench(output, tests):
    """Rates in llama-bench's JSON, which may have other lines before it."""
    rates = {}
    for row in rows_of_json(output):
        stage, tokens = ("prefill", row["n_prompt"]) if row["n_prompt"] else ("decode", row["n_gen"])
        for name, test in tests.items():
            if (test.stage, test.tokens) == (stage, tokens):
                rates[name] = row["avg_ts"]
    return rates


def rows_of_json(output):
    begin = output.find("[\n")
    if begin < 0:
        raise Unreadable(f"no JSON in the output, which ends: {output.strip()[-200:]!r}")
    return json.JSONDecoder().raw_decode(output[begin:])[0]


def batched_bench(output, tests):
    """S_TG, by number of streams, in the table of llama-batched-bench: PP TG B N_KV T_PP S_PP T_TG S_TG T S."""
    rates = {}
    for line in output.splitlines():
        cells = [part.strip() for part in line.strip().strip("|").split("|")]
        if len(cells) != 10 or not cells[0].isdigit():
            continue
        prompt, tokens, streams, rate = int(cells[0]), int(cells[1]), int(cells[2]), float(cells[7])
        for name, test in tests.items():
            if (test.depth, test.tokens, test.streams) == (prompt, tokens, streams):
                rates[name] = rate
    return rates


class OpenVino:
    """openvino_bench.py under a Python that has openvino-genai."""

    prints = ("stdout",)

    def __init__(self, python):
        self.name, self.python = "OpenVINO GenAI", python

    def command(self, model, threads, tests):
        wanted = [f"{test.stage}:{test.tokens}:{test.streams}:{test.depth}" for test in tests.values()]
        return [self.python, HERE / "openvino_bench.py", model.path, "--threads", threads, *wanted]

    def rates(self, output, tests):
        rates = {}
        for row in json.loads(output.strip().splitlines()[-1])["results"]:
            for name, test in tests.items():
                if all(row[key] == getattr(test, key) for key in ("stage", "tokens", "streams", "depth")):
                    rates[name] = row["tokens_per_second"]
        return complete(rates, tests, output)

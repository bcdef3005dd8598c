"""Starts real servers for the end-to-end tests: the built binary, the real model, real sockets."""

import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("MILLRACE_E2E_BINARIES", ROOT / "target" / "e2e"))
MODEL = os.environ.get("MILLRACE_SMOLLM2", str(pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"))
GUESTS = ROOT / "tests" / "guests" / "dist"

POOLS = """
[model.smollm2]
name = "smollm2-135m"
path = "{model}"

[device.cpu]
kind = "cpu"

[pool.fast-prefill]
stage = "prefill"
device = "cpu"
model = "smollm2"
recipe = "int8"
kv = "bf16"
pages = {pages}
max_step_tokens = 256

[pool.fast-decode]
stage = "decode"
device = "cpu"
model = "smollm2"
recipe = "int4"
kv = "fp8"
pages = {pages}
max_sequences = 16

[pool.exact-prefill]
stage = "prefill"
device = "cpu"
model = "smollm2"
recipe = "bf16"
kv = "bf16"
pages = {pages}
max_step_tokens = 256

[pool.exact-decode]
stage = "decode"
device = "cpu"
model = "smollm2"
recipe = "bf16"
kv = "bf16"
pages = {pages}
max_sequences = 16

[lane.fast]
prefill = "fast-prefill"
decode = "fast-decode"
max_waiting = {max_waiting}

[lane.exact]
prefill = "exact-prefill"
decode = "exact-decode"
max_waiting = {max_waiting}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    """Status, headers and body of one HTTP answer, whatever the status."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """One running `millrace serve`."""

    def __init__(self, directory, binary="millrace", extra="", server="", pools=None, pages=512, max_waiting=64, files=None):
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        text = f'[server]\nlisten = "127.0.0.1:{self.port}"\nadmin_listen = "127.0.0.1:{self.admin_port}"\n{server}\n'
        text += (pools or POOLS.format(model=MODEL, pages=pages, max_waiting=max_waiting)) + extra
        self.config = directory / f"deploy-{self.port}.toml"
        self.config.write_text(text)
        self.log_path = directory / f"server-{self.port}.log"
        with open(self.log_path, "wb") as log:
            command = [str(BINARIES / binary), "serve", "-c", str(self.config)]
            limit = files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=limit)

    def wait_ready(self, patience_s=120):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            try:
                if self.get("/ready").status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready within {patience_s} s:\n{self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def request(self, method, url, body=None, headers=None, timeout=120):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def get(self, path, headers=None):
        return self.request("GET", self.url + path, headers=headers, timeout=10)

    def post(self, path, body, headers=None):
        return self.request("POST", self.url + path, body, headers)

    def chat(self, content, headers=None, **fields):
        body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": content}], "temperature": 0} | fields
        return self.post("/v1/chat/completions", body, headers)

    def complete(self, prompt, headers=None, **fields):
        body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0} | fields
        return self.post("/v1/completions", body, headers)

    def stream(self, path, body, headers=None, timeout=120):
        """Yields each chunk of a streaming answer as parsed JSON; checks the framing and the end."""
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"} | (headers or {}))
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            done = False
            for line in answer:
                line = line.decode().rstrip("\n")
                if not line:
                    continue
                assert not done, f"after [DONE]: {line}"
                assert line.startswith("data: "), line
                if line == "data: [DONE]":
                    done = True
                else:
                    yield json.loads(line[len("data: ") :])
            assert done, "the stream ended without [DONE]"

    def stream_text(self, prompt, **fields):
        """The text of a streamed completion."""
        body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0} | fields
        chunks = self.stream("/v1/completions", body)
        return "".join(c["choices"][0]["text"] for c in chunks if c["choices"])

    def metric(self, name, **labels):
        """Sum of a metric's samples whose labels include `labels`."""
        total, wanted = 0.0, [f'{key}="{value}"' for key, value in labels.items()]
        text = self.get("/metrics").body.decode()
        for line in text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(w in sample for w in wanted):
                total += float(value)
        return total

    def pages_in_use(self):
        """Pages that are not free, over all pools."""
        return self.metric("millrace_pool_pages") - self.metric("millrace_pool_pages", state="free")

    def wait_for(self, what, patience_s=15):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if what():
                return
            time.sleep(0.05)
        raise AssertionError(f"did not come true within {patience_s} s\n{self.log()[-2000:]}")

    def stop(self, patience_s=30):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode


@pytest.fixture
def start(tmp_path):
    """Starts servers that end with the test."""
    servers = []

    def start_one(**options):
        server = Server(tmp_path, **options)
        servers.append(server)
        return server.wait_ready()

    yield start_one
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for a whole module."""
    server = Server(tmp_path_factory.mktemp("server")).wait_ready()
    yield server
    assert server.stop() == 0, server.log()

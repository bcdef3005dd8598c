"""The servers that are compared: how each is started, when it is ready, how it ends. Measures nothing."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import machine

# The model's name in every server.
NAME = "bench"
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:0"

[model.{name}]
path = "{path}"

[device.cpu]
threads = {threads}

[pool.prefill]
stage = "prefill"
recipe = "{prefill}"
kv = "bf16"

[pool.decode]
stage = "decode"
recipe = "{decode}"
kv = "fp8"

[lane.only]
prefill = "prefill"
decode = "decode"
"""
# A server's name: the project, the directory's option, and arguments of llama-server beside model, threads and port.
LLAMA_SERVERS = {
    "llama.cpp": ("llama_cpp", ["--parallel", "8", "-c", "8192"]),
    "llama.cpp, 32 slots": ("llama_cpp", ["--parallel", "32", "-c", "16384"]),
    "llama.cpp, flash off": ("llama_cpp", ["--parallel", "8", "-c", "8192", "-fa", "off", "-no-kvu", "-cram", "0"]),
    "ik_llama.cpp": ("ik_llama", ["--parallel", "8", "-c", "8192"]),
}


class Server:
    """A server: its command line on a port (with a directory for files), and the path that answers 200 when it can be used."""

    def __init__(self, name, command, ready):
        self.name, self.command, self.ready = name, command, ready

    @contextlib.contextmanager
    def running(self, patience_s):
        """Its process, ready to serve, and its port, until the block ends. Raises `machine.Failed` when it does not get there.

        Each start has a port of its own: connections of the one before may keep a port from another kind of server for a minute.
        """
        with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as there:
            port = free_port()
            command = [str(part) for part in self.command(port, pathlib.Path(there))]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, **streams, cwd=there, start_new_session=True)
            try:
                self.wait_ready(process, (command, port), patience_s, log)
                yield process, port
            finally:
                stop(process)

    def wait_ready(self, process, started, patience_s, log):
        command, port = started
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s and process.poll() is None:
            # Refused connections and answers like 503 are OSErrors both.
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{self.ready}", timeout=5):
                return
            time.sleep(0.2)
        log.seek(0)
        last_words = " / ".join(log.read().decode(errors="replace").strip().splitlines()[-3:])
        raise machine.Failed(f"`{' '.join(command)}` was not ready within {patience_s:.0f} s: {last_words}")


def stop(process, patience_s=30):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            machine.kill_session(process)
            process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def millrace(args):
    def command(port, directory):
        config = directory / "deploy.toml"
        recipes = {"prefill": args.gguf.prefill, "decode": args.gguf.decode}
        config.write_text(CONFIG.format(port=port, name=NAME, path=args.gguf.path, threads=args.threads, **recipes))
        return [args.millrace, "serve", "-c", config]

    return Server("Millrace", command, "/ready")


def llama(args, name, where, more):
    def command(port, _):
        base = ["-m", args.gguf.path, "-t", args.threads, "--host", "127.0.0.1", "--port", port, "--alias", NAME]
        return [pathlib.Path(where) / "llama-server", *base, *more]

    return Server(name, command, "/health")


def servers(args):
    """All that can be started with the options of serve_peers.py, and a line for each that is left out."""
    found, left_out = [millrace(args)], []
    for name, (option, more) in LLAMA_SERVERS.items():
        where = getattr(args, option)
        if where:
            found.append(llama(args, name, where, more))
        else:
            left_out.append(f"{name} (no --{option.replace('_', '-')})")
    return found, left_out

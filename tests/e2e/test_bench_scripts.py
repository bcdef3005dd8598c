"""The scripts that compare with other engines (`examples/bench`): what they read out of what these print, what they count as
disturbance, and a whole run against programs that only print such outputs.

In `outputs`, those of Millrace, llama.cpp and OpenVINO GenAI are saved from runs on a busy machine. Those of ik_llama.cpp are
laid out as its programs write them, with round numbers that nobody measured."""

import json
import pathlib
import subprocess
import sys

import pytest
from conftest import BINARIES, ROOT

BENCH, OUTPUTS = ROOT / "examples" / "bench", pathlib.Path(__file__).parent / "outputs"
sys.path.insert(0, str(BENCH))

import machine
import peers
import serve_peers
import tables

MILLRACE = peers.Millrace("millrace", "fp8")
LLAMA, IK = peers.Llama("llama.cpp", "there"), peers.Llama("ik_llama.cpp", "there", "repack")
OPENVINO = peers.OpenVino("python3")


def group(name):
    return {test: what for test, what in peers.TESTS.items() if what.group == name}


def saved(name):
    return (OUTPUTS / name).read_text()


@pytest.mark.parametrize(
    ("engine", "output", "tests", "rates"),
    [
        (MILLRACE, "millrace-single.json", "single", (485.74, 461.97, 164.41)),
        (MILLRACE, "millrace-streams.json", "streams", (121.08, 84.53)),
        (LLAMA, "llama-bench.json", "single", (110.51, 110.25, 38.23)),
        (LLAMA, "llama-batched-bench.txt", "streams", (49.11, 60.41)),
        (IK, "ik-llama-bench.json", "single", (1200, 1100, 180)),
        (IK, "ik-llama-batched-bench.txt", "deep", (70, 90)),
        (OPENVINO, "openvino.txt", "streams", (24.80, 37.46)),
    ],
)
def test_rates_are_read_out_of_what_each_engine_prints(engine, output, tests, rates):
    found = engine.rates(saved(output), group(tests))
    assert list(found) == list(group(tests))
    assert tuple(round(rate, 2) for rate in found.values()) == rates


@pytest.mark.parametrize("engine", [MILLRACE, LLAMA, IK, OPENVINO])
@pytest.mark.parametrize("tests", peers.GROUPS)
def test_output_without_the_figures_is_told(engine, tests):
    outputs = {
        MILLRACE: '{"results": []}', OPENVINO: '{"results": []}', LLAMA: "[\n]\n| PP | TG |\n", IK: "[\n]\nout of memory\n",
    }
    with pytest.raises(peers.Unreadable, match=next(iter(group(tests)))):
        engine.rates(outputs[engine], group(tests))
    if tests == "single" and engine in (LLAMA, IK):
        with pytest.raises(peers.Unreadable, match="no JSON.*killed"):
            engine.rates("warning\nkilled", group(tests))


class File:
    path, prefill, decode = "m.gguf", "int8", "int4"


def words(engine, chosen):
    return " ".join(str(part) for part in engine.command(File, 2, chosen))


def test_one_test_is_asked_for_as_well_as_its_group():
    deep = words(LLAMA, group("deep"))
    assert deep == "there/llama-batched-bench -m m.gguf -t 2 -c 16896 -npp 2048 -ntg 64 -npl 1,8 -pps"
    assert words(IK, {"decode-8": peers.TESTS["decode-8"]}).endswith("-c 1536 -npp 128 -ntg 64 -npl 8 -rtr")
    only_decode = {"decode-1": peers.TESTS["decode-1"]}
    assert "-p 0 -n 128" in words(LLAMA, only_decode)
    assert "-n 128 --kv fp8 -p 8 -b 1 -d 8 --prefill-weights int8 --decode-weights int4" in words(MILLRACE, only_decode)
    assert "-n 4 --kv fp8 -p 512 -b 1 -d 8" in words(MILLRACE, {"prefill-512": peers.TESTS["prefill-512"]})
    assert words(OPENVINO, group("streams")).endswith("m.gguf --threads 2 decode:64:8:128 decode:64:32:128")


def test_what_others_took_is_in_percent_of_a_core():
    stat = "cpu  1000 200 300 90000 50 10 40 70 5 0\ncpu0 500 100 150 45000 25 5 20 35 0 0\n"
    busy_s, steal_s = machine.cpu_times(stat)
    assert (busy_s * machine.TICKS_PER_S, steal_s * machine.TICKS_PER_S) == (1550, 70)
    assert machine.cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n") == "A CPU @ 2 GHz"
    assert machine.disturbance({"foreign_percent": 1.0, "steal_percent": 7.5}) == 7.5


def test_a_program_that_fails_or_never_ends_is_told():
    with pytest.raises(machine.Failed, match="ended with 3.*last words"):
        machine.run(["sh", "-c", "echo last words >&2; exit 3"], 60)
    with pytest.raises(machine.Failed, match="ended with -9"):
        machine.run(["sleep", "600"], 0.2)
    with pytest.raises(machine.Failed, match="cannot be started"):
        machine.run([BENCH / "none"], 60)
    ran = machine.run(["echo", "out"], 60)
    assert ran.stdout == "out\n" and ran.load["wall_seconds"] > 0 and ran.load["peak_rss_bytes"] > 0


def run_of(rate, disturbed=False):
    return {"tokens_per_second": rate, "disturbed": disturbed}


def test_the_ratio_is_to_the_best_peer():
    engines = {
        "Millrace": tables.summary([run_of(300.0), run_of(320.0), run_of(310.0)]),
        "llama.cpp": tables.summary([run_of(100.0), run_of(90.0)]),
        "ik_llama.cpp": tables.summary([run_of(155.0, disturbed=True)]),
        "OpenVINO GenAI": tables.summary([]),
    }
    assert tables.compare(engines) == ("ik_llama.cpp", 2.0)
    assert tables.compare({"Millrace": engines["Millrace"]}) == (None, None)
    assert tables.compare({"llama.cpp": engines["llama.cpp"]}) == ("llama.cpp", None)
    text = tables.table([{"test": "decode-1", "engines": engines}], list(engines))
    row = "| decode-1 | 310 [300..320] | 95.0 [90.0..100] | 155 [155..155]\\* | - | ik_llama.cpp | 2.00 |"
    assert text.splitlines()[-1] == row


def test_figures_of_a_server():
    levels = serve_peers.figures(json.loads(saved("bench-serve.json")))
    assert list(levels) == [1, 8]
    loads = {"disturbed": False}
    text = serve_peers.table({"A": [(levels, loads)], "B, in process": [({1: {"out tok/s": 9.5}}, {"disturbed": True})]}, 1)
    assert text.splitlines()[-1] == "| B, in process | 9.50 [9.50..9.50]\\* | - | - | - | - |"


def fake(path, output, condition="true"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{condition} || {{ echo broken >&2; exit 1; }}\ncat {OUTPUTS / output}\n")
    path.chmod(0o755)
    return path


def against_peers(directory, *args):
    command = [sys.executable, BENCH / "against_peers.py", "--gguf", f"{directory / 'm.Q4_1.gguf'}", "--threads", "2", *args]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory)}
    command += ["--millrace", directory / "millrace", "--out", directory / "out.json", "--max-foreign", "1000"]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_a_whole_run_tells_what_is_left_out_and_what_failed_and_can_be_repeated_in_part(tmp_path):
    (tmp_path / "m.Q4_1.gguf").write_bytes(b"")
    fake(tmp_path / "millrace", "millrace-single.json")
    fake(tmp_path / "llama" / "llama-bench", "llama-bench.json")
    fake(tmp_path / "ik" / "llama-bench", "ik-llama-bench.json", "false")
    peers_named = ("--llama-cpp", tmp_path / "llama", "--ik-llama", tmp_path / "ik", "--variants", "llama.cpp:flash-off")
    first = against_peers(tmp_path, *peers_named, "--tests", "prefill-512,decode-1", "--rounds", "3")
    assert first.returncode == 1, first.stderr
    assert "Left out: OpenVINO GenAI (no --openvino)" in first.stdout
    assert "Failed: ik_llama.cpp:" in first.stdout and "broken" in first.stdout
    before = json.loads((tmp_path / "out.json").read_text())
    assert [row["test"] for row in before["rows"]] == ["prefill-512", "decode-1"]
    for row in before["rows"]:
        assert set(row["engines"]) == {"Millrace", "llama.cpp", "llama.cpp, flash-off"}
        assert [len(figure["runs"]) for figure in row["engines"].values()] == [3, 3, 3]
        assert row["ratio"] == row["engines"]["Millrace"]["median"] / row["engines"][row["best_peer"]]["median"]
    again = against_peers(tmp_path, "--tests", "decode-1", "--rounds", "1", "--merge")
    assert again.returncode == 0, again.stderr
    after = json.loads((tmp_path / "out.json").read_text())
    assert after["rows"][0] == before["rows"][0]
    assert len(after["rows"][1]["engines"]["Millrace"]["runs"]) == 1
    assert after["rows"][1]["engines"]["llama.cpp"] == before["rows"][1]["engines"]["llama.cpp"]


def test_arguments_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "m.Q4_1.gguf").write_bytes(b"")
    (tmp_path / "m.gguf").write_bytes(b"")
    for args, told in [
        (("--tests", "decode-9"), "decode-9"),
        (("--rounds", "0"), "start at 1"),
        (("--gguf", tmp_path / "none.gguf"), "not a file"),
        (("--gguf", tmp_path / "m.gguf"), "int8/int4"),
    ]:
        result = against_peers(tmp_path, *args)
        assert result.returncode == 2 and told in result.stderr, result.stderr


def test_what_a_failing_policy_costs_is_measured_with_no_request_failed(tmp_path):
    """A short run of the real script: counts are judged, times are not."""
    out = tmp_path / "faults.json"
    size = ("--requests", "24", "--concurrency", "4", "--rounds", "1", "--prompt-tokens", "64", "--max-tokens", "12")
    script = [sys.executable, BENCH / "policy_faults.py", "--millrace", BINARIES / "millrace", "--out", out, *size]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    total = json.loads(out.read_text())["total"]
    assert [one["failed"] for one in total.values()] == [0, 0, 0] and all(one["requests"] == 24 for one in total.values())
    closed = total["breaker held closed"]
    assert closed["faults"]["trap"] > 0 and closed["faults"]["timeout"] + closed["faults"]["late"] > 0, closed
    assert "| breaker free |" in done.stdout


def test_a_policy_that_did_not_fail_as_it_should_have_is_told():
    import policy_faults

    def one(failed=0, trap=0.0, timeout=0.0):
        faults = {"trap": trap, "timeout": timeout, "late": 0.0, "unavailable": 0.0}
        counts = {"requests": 8, "failed": failed, "decisions": 90.0, "rollbacks": 0.0}
        return [counts | {"ttft_p99_ms": 20.0 + trap, "faults": faults}]

    fine = {"native fallback": one(), "breaker held closed": one(trap=2.0, timeout=1.0), "breaker free": one(trap=1.0, timeout=1.0)}
    total = policy_faults.summary(fine)
    assert policy_faults.wrong(total) == [] and total["breaker held closed"]["over_native"] == 1.1
    bad = policy_faults.wrong(policy_faults.summary(fine | {"breaker free": one(failed=3, trap=1.0)}))
    assert len(bad) == 2 and "3 requests failed" in bad[0] and "did not fail in both ways" in bad[1], bad

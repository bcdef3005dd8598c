#!/usr/bin/env python3
"""Instructions of one decode step and of one prefill chunk, counted by valgrind: figures that do not depend on what else the machine
does, so that a change can be judged where times cannot.

    examples/bench/instructions.py [--millrace PATH] [--model GGUF] [--chunk TOKENS] [--steps N]

Counted is what the device's worker runs (all of `pool::work`: the kernels, and what divides work among one thread), not the engine's
thread, whose waiting takes as many instructions as the machine is slow. `millrace bench engine` runs a test once to warm up and once
to measure, so a test that is named twice is run twice more: half the difference between two such runs is one of the test. Takes
about ten minutes. Needs valgrind (apt-get install valgrind), which knows AVX2 and no AVX-512: the program takes the set that valgrind
shows it. Standard library only.
"""

import argparse
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path.home() / ".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"
WORK = "millrace_cpu::pool::work"
TASK = re.compile(r"<millrace_cpu::ops::(?:\w+::)*(\w+) as millrace_cpu::(?:task::Task>::(run)|ops::fused::RowTask>::(row))")
LINE = re.compile(r"^\s*([\d,]+) \([ \d.]+%\)\s+(\S.*)$")


def inclusive(annotated):
    """(instructions of all of the worker, {operation: instructions}) of callgrind_annotate's inclusive listing."""
    total, operations = 0, {}
    for line in annotated.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        count, function = int(match[1].replace(",", "")), match[2]
        if WORK in function and "'2" not in function:
            total = max(total, count)
        task = TASK.search(function)
        if task:
            name = (task[1], task[2] or task[3])
            operations[name] = max(operations.get(name, 0), count)
    return total, by_operation(operations)


def by_operation(tasks):
    """Sums by operation: what is done together with a product is counted with its own kind, wherever it is done."""
    rows = {task: count for (task, function), count in tasks.items() if function == "row"}
    sums = {task: count + rows.get(task, 0) for (task, function), count in tasks.items() if function == "run"}
    sums |= {task: count for task, count in rows.items() if task not in sums}
    fused = sums.pop("FusedTask", 0)
    sums["LinearOp"] = sums.get("LinearOp", 0) + fused - (sum(rows.values()) if fused else 0)
    return sums


def count(args, prompts, steps):
    """What the worker ran in a bench of these prompts and one decode of so many steps."""
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(args.millrace), "bench", "engine"]
        command += ["-m", str(args.model), "-p", ",".join(str(p) for p in prompts), "-n", str(steps), "-b", "1", "-t", "1", "-r", "1"]
        print(f"counting -p {','.join(map(str, prompts))} -n {steps}", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        device = done.stdout.splitlines()[0]
        annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
        return device, inclusive(subprocess.run(annotate, capture_output=True, text=True, check=True).stdout)


def difference(more, less, times):
    """One run of what `more` did `times` more often."""
    operations = {name: (count - less[1].get(name, 0)) / times for name, count in more[1].items()}
    return (more[0] - less[0]) / times, {name: count for name, count in operations.items() if count > 0}


def table(tests):
    lines = ["| | instructions | " + " | ".join(name for name in NAMES) + " | the rest |", "|---" * (len(NAMES) + 3) + "|"]
    for test, (total, operations) in tests:
        cells = [operations.get(task, 0) for task in NAMES.values()]
        shares = [f"{100 * cell / total:.1f} %" for cell in [*cells, total - sum(cells)]]
        lines.append(f"| {test} | {total / 1e6:,.2f} M | {' | '.join(shares)} |")
    return "\n".join(lines)


NAMES = {
    "products": "LinearOp",
    "attention": "BlockedAttend",
    "norms": "RmsNormTask",
    "gate": "SiluMulTask",
    "rotation": "RopeTask",
    "KV write": "WriteKvTask",
    "sampling": "SampleTask",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=pathlib.Path, default=pathlib.Path("target/release/millrace"))
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    if args.chunk < 1 or args.steps < 1:
        sys.exit("--chunk and --steps: 1 or more")
    for tool in ["valgrind", "callgrind_annotate"]:
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: apt-get install valgrind")
    for path in [args.millrace, args.model]:
        if not path.exists():
            sys.exit(f"{path} does not exist; build with `cargo build --release`, fetch the model with examples/fetch-model.sh")
    # One more token is one more step, in the warm-up and in the measured run.
    device, base = count(args, [args.chunk], 4)
    _, prefill = count(args, [args.chunk, args.chunk], 4)
    _, decode = count(args, [args.chunk], 4 + args.steps)
    print(f"{args.model.name}; {device.split(' on ')[-1].split(', 2')[0]}; {platform.machine()}, valgrind\n")
    tests = [
        (f"prefill, a chunk of {args.chunk} tokens", difference(prefill, base, 2)),
        ("decode, one step of one stream, 12 to 20 tokens behind it", difference(decode, base, 2 * args.steps)),
    ]
    print(table(tests))


if __name__ == "__main__":
    main()

"""What a measurement needs of the machine: its names, and how much others took of it while a program ran.

Foreign CPU is what all processes but the measured ones used, read from /proc/stat; steal is what the hypervisor kept. Both are
given in percent of one core, since one busy neighbour stops a pool of threads that wait for each other. Knows no engine.
Linux only.
"""

import contextlib
import os
import pathlib
import platform
import resource
import signal
import subprocess
import tempfile
import threading
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_times(stat):
    """(busy, steal) seconds of all CPUs since boot, from the text of /proc/stat."""
    # user nice system idle iowait irq softirq steal (guest times are in user and nice already)
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


def cpu_model(cpuinfo):
    """The first CPU's name, from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def describe():
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    return {
        "cpu": cpu_model(flags),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [name for name in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if f" {name} " in flags],
        "kernel": platform.release(),
    }


class Load:
    """Times a stretch of work and says what others did meanwhile. The work's own CPU time is given to `end`."""

    def __init__(self):
        self.busy_s, self.steal_s = cpu_times(pathlib.Path("/proc/stat").read_text())
        self.began_s, self.self_s = time.monotonic(), own_cpu_s()

    def end(self, work_cpu_s):
        wall_s = time.monotonic() - self.began_s
        busy_s, steal_s = cpu_times(pathlib.Path("/proc/stat").read_text())
        own_s = work_cpu_s + own_cpu_s() - self.self_s
        foreign_s = max(0.0, busy_s - self.busy_s - own_s)
        return {
            "wall_seconds": round(wall_s, 3),
            "foreign_percent": round(100 * foreign_s / wall_s, 2),
            "steal_percent": round(100 * (steal_s - self.steal_s) / wall_s, 2),
        }


def cpu_s_of(pid):
    """CPU seconds that a running process has used, threads included; 0 for none."""
    if pid is None:
        return 0.0
    # The name in parentheses may hold anything; after it come state (field 3) and, as fields 14 and 15, user and system ticks.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def own_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def disturbance(load):
    """What counts against a run, in percent of a core."""
    return max(load["foreign_percent"], load["steal_percent"])


class Failed(Exception):
    """A program that ended badly or ran too long; the message says which and shows its last words."""


class Ran:
    """What a program printed, and its load: that of `Load` and its own peak of memory."""

    def __init__(self, stdout, stderr, load):
        self.stdout, self.stderr, self.load = stdout, stderr, load


def run(command, timeout_s, beside=None):
    """Runs a program to its end, in an empty directory: some leave logs where they run, so paths must be absolute. What the process
    with id `beside` uses meanwhile belongs to the measurement and is not foreign.

    Raises `Failed` when it cannot be started, fails, or takes longer than `timeout_s`."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryDirectory() as there:
        load, beside_s = Load(), cpu_s_of(beside)
        try:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = subprocess.Popen(command, **streams, cwd=there, start_new_session=True)
        except OSError as error:
            raise Failed(f"{command[0]} cannot be started: {error.strerror}") from error
        status, usage = wait(process, timeout_s)
        work_cpu_s = usage.ru_utime + usage.ru_stime + cpu_s_of(beside) - beside_s
        load = load.end(work_cpu_s) | {"peak_rss_bytes": usage.ru_maxrss * 1024}
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if status != 0:
        last_words = " / ".join(texts[1].strip().splitlines()[-3:])
        raise Failed(f"`{' '.join(command)}` ended with {status} after {load['wall_seconds']:.0f} s: {last_words}")
    return Ran(*texts, load)


def wait(process, timeout_s):
    """Exit status (negative: a signal) and resource usage of a process; kills its session when it takes too long, or on Ctrl-C."""
    killer = threading.Timer(timeout_s, kill_session, [process])
    killer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        kill_session(process)
        os.wait4(process.pid, 0)
        process.returncode = -signal.SIGKILL
        raise
    finally:
        killer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def kill_session(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

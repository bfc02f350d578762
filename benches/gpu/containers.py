"""A real GPU in Podman's containers: given to them as a device of the container device interface, taken by
`checkpoint --container`, brought back from the image, every answer compared.

Nothing is fetched: the root file systems are made of this machine's own files.
"""

import glob
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from images import ask
from programs import HERE, python_program, steps_of, steps_program, wait_for

DEVICE = "nvidia.com/gpu=all"
DESCRIPTIONS = [Path("/etc/cdi"), Path("/var/run/cdi")]
SERVED = ["hello", "gpt2-large"]
STATIC = "nvcc-static"
PROGRAMS = [STATIC, *SERVED]
# An engine's own may be more than a machine is allowed to give.
LIMITS = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
STEPS, PAUSE = 80, 0.1
RESTORES = 2


def missing():
    """What is not here, as a sentence; empty where containers can be run."""
    absent = [program for program in ("podman", "runc") if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    return f"no containers here: {' and '.join(absent)} not installed" if absent else ""


def podman(*words, limit=60):
    done = subprocess.run(["podman", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
    if done.returncode:
        raise RuntimeError(f"podman {words[0]} failed: {done.stderr.strip()[-900:]}")
    return done.stdout


def measure(rekindle, name, work):
    absent = missing()
    if absent:
        return {"ok": True, "skipped": absent}
    with Device() as device:
        return (static if name == STATIC else served)(rekindle, name, work, device)


class Device:
    """The GPU's description: the one that `nvidia-ctk cdi generate` has written here, or one like it for as long as this lasts."""

    def __init__(self):
        self.library = driver_library()
        self.file = None if described() else DESCRIPTIONS[1] / "rekindle-bench.yaml"

    def __enter__(self):
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(description(self.library))
        return self

    def __exit__(self, *_):
        if self.file:
            self.file.unlink()


def described():
    files = [path for directory in DESCRIPTIONS for path in directory.glob("*")]
    return any("nvidia.com/gpu" in path.read_text(errors="replace") for path in files)


def driver_library():
    """Where the driver's files lie, rather than a link to them."""
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    linked = re.findall(r"libcuda\.so\.1 \(.*x86-64.*\) => (\S+)", known)
    files = [Path(path) for path in (os.environ.get("REKINDLE_LIBCUDA"), *linked) if path]
    for directory in [file.resolve().parent for file in files] + [file.parent for file in files]:
        if (directory / "libcuda.so.1").exists():
            return directory / "libcuda.so.1"
    raise RuntimeError("the driver's libcuda.so.1 is not in the loader's cache, and not beside what REKINDLE_LIBCUDA names")


def description(library):
    """The driver's devices, and the directory with its libraries, under the names that they have here."""
    nodes = [path for path in sorted(glob.glob("/dev/nvidia*")) if not os.path.isdir(path)]
    lines = ["---", "cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "containerEdits:", "  env:", f"  - LD_LIBRARY_PATH={library.parent}", "  mounts:"]
    lines += [
        f"  - containerPath: {library.parent}",
        f"    hostPath: {library.parent}",
        "    options:",
        "    - ro",
        "    - nosuid",
        "    - nodev",
        "    - bind",
    ]
    lines += ["devices:", "- name: all", "  containerEdits:", "    deviceNodes:", *(f"    - path: {path}" for path in nodes)]
    return "\n".join([*lines, ""])


class Container:
    """A container of an image of its own; both go when this is left, under whatever name it was brought back."""

    def __init__(self, name):
        self.name, self.image, self.running = f"rekindle-bench-{name}", f"localhost/rekindle-bench-{name}", None

    def start(self, root, volumes, command):
        subprocess.run(f"tar -C {root} -cf - . | podman import - {self.image}", shell=True, check=True, capture_output=True)
        options = ["--network", "host", "--device", DEVICE, "--log-driver", "k8s-file", "--env", "HOME=/tmp", "--env", "USER=root", *LIMITS]
        mounts = [word for volume in volumes for word in ("--volume", volume)]
        podman("--runtime", "runc", "run", "--detach", "--name", self.name, *options, *mounts, self.image, *command)
        self.running = self.name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
        subprocess.run(["podman", "rmi", "--force", self.image], capture_output=True)

    def remove(self):
        if self.running:
            subprocess.run(["podman", "rm", "--force", "--time", "0", self.running], capture_output=True)
            self.running = None

    def state(self):
        return podman("inspect", "--format", "{{.State.Status}}", self.running).strip()

    def lines(self):
        return podman("logs", self.running).splitlines()

    def wait(self, condition, limit, what):
        wait_for(lambda: condition() or self.state() != "running", limit, f"{what} of {self.running}")
        if not condition():
            said = subprocess.run(["podman", "logs", self.running], capture_output=True, text=True)
            raise RuntimeError(f"{self.running} has ended: {(said.stdout + said.stderr).strip()[-600:]}")

    def checkpoint(self, rekindle, image, after):
        start = time.perf_counter()
        report = rekindle.json("checkpoint", "--container", self.running, "--to", image, after)
        return {"seconds": time.perf_counter() - start, "report": report}

    def restore(self, rekindle, image, name):
        start = time.perf_counter()
        report = rekindle.json("restore", image, "--name", name)
        self.running = name
        return {"running_s": time.perf_counter() - start, "report": report}


def served(rekindle, name, work, device):
    """A service: goes on beside its first image, is stopped with the second, and brought back from that."""
    trigger, image = work / f"{name}-container-ask", f"{name}-container"
    root = directories(work / f"{name}-root")
    volumes = [f"{path}:{path}:ro,bind" for path in [*python_paths(device.library.parent), HERE]] + [f"{work}:{work}:bind"]
    row, same = {"ok": False, "checkpoints": [], "restores": []}, True
    with Container(name) as container:
        container.start(root, volumes, python_program(name, "--serve", trigger))
        container.wait(lambda: "ready" in container.lines(), 120, "the start")
        row["warm_answer_s"], expected = ask(trigger)
        row["checkpoints"].append(container.checkpoint(rekindle, image, "--leave-running"))
        same = ask(trigger)[1] == expected
        rekindle("rmi", image)
        row["checkpoints"].append(container.checkpoint(rekindle, image, "--stop"))
        row["sizes"] = rekindle.json("inspect", image)["sizes"]
        for n in range(RESTORES):
            container.remove()
            start = time.perf_counter()
            one = container.restore(rekindle, image, f"{container.name}-{n}")
            _, answer = ask(trigger)
            one["first_answer_s"] = time.perf_counter() - start
            one["warm_answer_s"], again = ask(trigger)
            row["restores"].append(one)
            same = same and answer == again == expected
        rekindle("rmi", image)
    row["first_answer_s"] = statistics.median(one["first_answer_s"] for one in row["restores"])
    return {**row, "ok": same and on_gpu(row)}


def static(rekindle, name, work, device):
    """A container with one program and its libraries: every line that it prints before, between and after."""
    command = steps_program(name, work, STEPS, PAUSE)
    reference = steps_of(subprocess.run([command[0], str(STEPS), "0"], capture_output=True, text=True, check=True).stdout.splitlines())
    root, image = directories(work / f"{name}-root"), f"{name}-container"
    libraries = subprocess.run(["ldd", command[0], device.library], capture_output=True, text=True).stdout
    for path in [command[0], *re.findall(r"(/\S+) \(0x", libraries)]:
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    row = {"ok": False, "checkpoints": []}
    with Container(name) as container:
        container.start(root, [], command)
        steps = lambda: steps_of(container.lines())
        container.wait(lambda: len(steps()) > 3, 30, "the first steps")
        row["checkpoints"].append(container.checkpoint(rekindle, image, "--leave-running"))
        rekindle("rmi", image)
        count = len(steps())
        container.wait(lambda: len(steps()) > count + 3, 30, "further steps")
        row["checkpoints"].append(container.checkpoint(rekindle, image, "--stop"))
        row["sizes"] = rekindle.json("inspect", image)["sizes"]
        before = steps()
        container.remove()
        row["restores"] = [container.restore(rekindle, image, f"{container.name}-again")]
        wait_for(lambda: container.state() != "running", STEPS * PAUSE + 30, "the end of the program")
        after = steps()
        rekindle("rmi", image)
    row["steps"] = {"before": len(before), "after": len(after)}
    # What the container has said before comes with it, if its engine keeps that.
    same = all(after.get(step, digest) == digest for step, digest in before.items())
    return {**row, "ok": same and {**before, **after} == reference and on_gpu(row)}


def on_gpu(row):
    """Whether it was the GPU's program that was taken every time."""
    return all(one["report"]["gpu_processes"] == 1 for one in row["checkpoints"])


def directories(root):
    """An empty root file system whose top is as this machine's."""
    for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        host = Path("/", name)
        if host.is_symlink():
            (root / "usr" / name).mkdir()
            (root / name).symlink_to(os.readlink(host).lstrip("/"))
        elif host.is_dir():
            (root / name).mkdir()
    return root


def python_paths(without):
    """Where Python and what it loads lie; the driver comes as the device's."""
    own = {Path(sys.prefix), Path(sys.base_prefix)}
    # A child of another one comes with it.
    tops = [path for path in own if not any(path != other and path.is_relative_to(other) for other in own | {Path("/usr")})]
    return [part for top in sorted({*tops, Path("/usr")}) for part in parts(top, without)]


def parts(top, without):
    """The directory, or those in it, so that one in it stays out."""
    if not without.is_relative_to(top):
        return [top]
    if top == without:
        return []
    children = [child for child in sorted(top.iterdir()) if child.is_dir() and not child.is_symlink()]
    return [part for child in children for part in parts(child, without)]

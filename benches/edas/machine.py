"""Programs of the benchmark: processes of the machine where there is an NVIDIA GPU, else sandboxes, which alone have the emulated one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Asking whether there is a GPU is not to begin its driver in a process that is forked; nothing is to be fetched from elsewhere.
VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Programs:
    """`start(name, command)`, `ended(name)`, `said(name)`, `end()`."""

    def __init__(self, instance, gpu, work):
        self.instance, self.work = instance, work
        self.is_native = not gpu.startswith("emulated")
        self.processes, self.sandboxes = {}, set()

    def start(self, name, command):
        words = [str(word) for word in command]
        if self.is_native:
            with open(self.work / f"{name}.log", "w") as log:
                options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
                self.processes[name] = subprocess.Popen(words, env=os.environ | VARIABLES, **options)
        else:
            self.instance.run(name, *words)
            self.sandboxes.add(name)

    def ended(self, name):
        if name in self.processes:
            return self.processes[name].poll() is not None
        return not self.instance.sandbox(name)["pid"]

    def said(self, name):
        """Its last lines."""
        text = (self.work / f"{name}.log").read_text(errors="replace") if name in self.processes else self.instance("logs", name)
        return text.strip()[-1500:]

    def end(self, *names):
        """These, with the processes that they have started, or all."""
        for name in names or [*self.processes]:
            if process := self.processes.pop(name, None):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        kept = [name for name in names or [*self.sandboxes] if name in self.sandboxes]
        if kept:
            self.instance("kill", *kept, check=False)
        self.sandboxes -= set(kept)


class Store:
    """`with Store(directory, gigabits) as store: store.url(name)`."""

    def __init__(self, directory, gigabits):
        words = [sys.executable, str(HERE / "store.py"), str(directory), str(gigabits * 1e9)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def url(self, name):
        return f"http://127.0.0.1:{self.port}/{name}"

    def given(self):
        """How many bytes of objects it has given so far."""
        with urllib.request.urlopen(self.url("-/given"), timeout=30) as answer:
            return json.loads(answer.read())["bytes"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class GpuMemory:
    """What the GPU's memory holds in all, four times a second, in bytes; nothing where there is no `nvidia-smi`."""

    def __init__(self, is_there):
        self.values, self.process = [], None
        if is_there:
            query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0", "-lms", "250"]
            with contextlib.suppress(OSError):
                self.process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.values.append(int(line) << 20)

    def since(self, mark):
        """All since there were so many values, the greatest, and the mean."""
        values = self.values[mark:]
        return {"most": max(values), "mean": sum(values) / len(values), "values": values} if values else None

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()

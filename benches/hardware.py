"""What a benchmark ran on."""

import os
import platform
import shutil
import subprocess


def described():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else "none"
    return {"gpu": gpu, "cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}

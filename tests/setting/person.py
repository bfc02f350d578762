"""Says who it is and where; takes memory when it is told to, as much as `person.py FILE` has in it."""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1").cuInit(0)
own = {name: os.environ.get(name) for name in ("HOME", "USER", "ANSWER")}
print(json.dumps({"ids": [os.getuid(), os.getgid()], "groups": os.getgroups(), "cwd": os.getcwd(), "cuda": cuda, **own}), flush=True)
wish = Path(sys.argv[1])
held = b""
while True:
    text = wish.read_text() if wish.exists() else ""
    if text:
        # Before it is answered: what is wished after that is another one.
        wish.unlink()
        held = b"x" * int(text)
        print(len(held), flush=True)
    time.sleep(0.02)

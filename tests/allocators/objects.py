"""Python's own allocator: zeros are zero and contents stay, before and after a restore.

objects.py GO SECONDS
"""

import os
import random
import sys
import time

go, seconds = sys.argv[1], float(sys.argv[2])
held = [bytes([i % 255 + 1]) * random.Random(i).randrange(1, 3000) for i in range(20_000)]
held += [bytearray(b"\x5a") * (1 << 20) for _ in range(20)]
large = {i: str(i) * 7 for i in range(50_000)}
del held[::3]
print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
end, dice, wrong = time.monotonic() + seconds, random.Random(1), 0
while time.monotonic() < end:
    size = dice.choice([dice.randrange(1, 500), dice.randrange(1, 100_000), dice.randrange(1, 3 << 20)])
    zeros = bytearray(size)
    wrong += zeros.count(0) != size
    wrong += bytes(size).count(0) != size
    zeros[:] = b"\x77" * size
    held[dice.randrange(len(held))] = zeros
    key = dice.randrange(50_000)
    wrong += large[key] != str(key) * 7
print("wrong" if wrong else "ok")

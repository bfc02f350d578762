"""Has 32 MB of its own that do not compress, and reads them once the file GO is there.

noise.py GO
"""

import os
import random
import sys
import time

noise = random.Random(7).randbytes(32 << 20)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print(sum(noise[::4096]), flush=True)

"""Asks the driver for something that sandboxes do not have, says what it was told, and waits for the file that it is given."""

import ctypes
import os
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
if "harmless" not in sys.argv:
    print(cuda.cuInit(0), cuda.cuImportExternalMemory(None, None), flush=True)
else:
    print(cuda.cuInit(0), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)

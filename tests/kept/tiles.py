"""Compiles tiles.c, and becomes it.

tiles.py GO.
"""

import os
import subprocess
import sys
from pathlib import Path

go = Path(sys.argv[1])
program = go.with_name("tiles")
source = Path(__file__).with_suffix(".c")
subprocess.run(["cc", "-O1", "-pthread", "-mamx-tile", "-mamx-int8", "-o", program, source], check=True)
os.execv(program, [program, go])

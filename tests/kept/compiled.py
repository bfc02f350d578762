"""Compiles a program of this directory, and becomes it.

compiled.py GO NAME [OPTION...]: NAME is that of a C file, and the options are the compiler's.
"""

import os
import subprocess
import sys
from pathlib import Path

go, name, *options = sys.argv[1:]
program = Path(go).with_name(name)
source = Path(__file__).with_name(f"{name}.c")
subprocess.run(["cc", "-O1", "-pthread", *options, "-o", program, source], check=True)
os.execv(program, [program, go])

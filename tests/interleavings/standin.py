"""The stand-in for the driver: built, set up, and asked for what it has done to a process."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

from rekindle import PATIENCE, ROOT

SOURCE = ROOT / "crates/cli/tests/programs/standin_driver.c"
GPUS = "1 H200 100000000 50000000\n2 H200 100000000 50000000\n"
SWITCH = "always [madvise] never\n"
STATES = ["running", "locked", "checkpointed", "failed"]
KNOWS_NONE = 1


class Standin:
    """In DIRECTORY; what the driver keeps for a process has so many words of 8 bytes. A step may take so many seconds."""

    def __init__(self, directory, words, limit):
        self.directory = Path(directory)
        # A process's state is found by the library's path.
        self.library = self.directory / "libcuda.so.1"
        build = ["cc", "-O1", "-shared", "-fPIC", f"-DWORDS={words}", "-o", self.library, SOURCE, "-ldl"]
        subprocess.run(build, check=True)
        (self.directory / "libnvidia-ml.so.1").symlink_to(self.library)
        (self.directory / "gpus").write_text(GPUS)
        self.switch = self.directory / "huge-pages"
        self.reset()
        self.driver = ctypes.CDLL(str(self.library))
        self.environment = {
            "REKINDLE_LIBCUDA": str(self.library),
            "REKINDLE_TUNING": f"driver.huge-pages={self.switch},driver.step-ms={1000 * limit}",
            "STANDIN_DIR": str(self.directory),
        }

    def reset(self):
        """Nothing goes wrong from here on, and the switch for large pages reads as the kernel's does."""
        self.reset_plan()
        self.switch.write_text(SWITCH)

    def reset_plan(self):
        (self.directory / "plan").unlink(missing_ok=True)

    def plan(self, step, action, count):
        """The driver's next steps go wrong."""
        (self.directory / "plan").write_text(f"{step} {action} {count}\n")

    def state(self, pid):
        """None of a process that does not use the driver."""
        state = ctypes.c_int()
        code = self.driver.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        return None if code == KNOWS_NONE else STATES[state.value]


def fresh(words, limit=PATIENCE):
    directory = tempfile.TemporaryDirectory(prefix="rekindle-standin-")
    return directory, Standin(os.path.realpath(directory.name), words, limit)

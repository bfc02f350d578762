"""CatBoost: trees on the GPU, whose log is what is compared."""

import sys
import time
from pathlib import Path

import numpy as np
import steps
from catboost import CatBoostClassifier


class Log:
    """Its line of a tree is `NUMBER: learn: LOSS ...`."""

    def write(self, text):
        for words in map(str.split, text.splitlines()):
            if len(words) > 2 and words[1] == "learn:":
                print(f"step {words[0].rstrip(':')} {words[2]}", flush=True)
                time.sleep(steps.PAUSE)
                if Path(sys.argv[1]).exists():
                    sys.exit()

    def flush(self):
        pass


random = np.random.default_rng(0)
x = random.standard_normal((100_000, 30), np.float32)
settings = {"task_type": "GPU", "devices": "0", "random_seed": 1, "verbose": 1, "allow_writing_files": False, "gpu_ram_part": 0.1}
CatBoostClassifier(iterations=100_000, **settings).fit(x, x[:, :5].sum(1) > 0, log_cout=Log())

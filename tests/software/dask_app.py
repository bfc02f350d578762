"""A scheduler and a worker of Dask's in one process: `dask_app.py PORT`. Clients have the worker run `answer`."""

import sys
import threading

from counter import Counter
from dask.distributed import LocalCluster

COUNTER = []


def answer():
    if not COUNTER:
        COUNTER.append(Counter())
    return COUNTER[0].next()


if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, host="tcp://127.0.0.1", scheduler_port=int(sys.argv[1]), dashboard_address=None
    )
    threading.Event().wait()

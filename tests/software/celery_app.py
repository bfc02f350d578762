"""Tasks of Celery's, whose messages lie in directories: `celery -A celery_app worker`, below the directory in `CELERY_PLACE`."""

import os
from pathlib import Path

from celery import Celery
from counter import Counter

place = Path(os.environ["CELERY_PLACE"])
for name in ("messages", "results", "control"):
    (place / name).mkdir(parents=True, exist_ok=True)
app = Celery("counter", broker="filesystem://", backend=f"file://{place}/results")
app.conf.broker_transport_options = {
    "data_folder_in": str(place / "messages"),
    "data_folder_out": str(place / "messages"),
    "control_folder": str(place / "control"),
    "store_processed": False,
}
app.conf.worker_hijack_root_logger = False
made = []


@app.task
def answer():
    if not made:
        made.append(Counter())
    return made[0].next()

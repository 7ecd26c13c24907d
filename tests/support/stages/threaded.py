"""Starts a thread when it is imported, as a library might in its next version."""

import threading
import time
from pathlib import Path


def _sleep() -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("busy")
    time.sleep(600)


threading.Thread(target=_sleep, daemon=True).start()
time.sleep(0.2)

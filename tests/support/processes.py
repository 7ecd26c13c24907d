"""Processes that tests watch."""

import psutil


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead: a test process adopts orphans once it has started a stage itself, and
    reaps none of them."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

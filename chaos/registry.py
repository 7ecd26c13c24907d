"""All attacks by name, in the order of the table.

Each group has a test file of its own, because pytest-xdist gives a file to one process.
"""

from typing import Final

from chaos import (
    broker,
    damage,
    exact_resume,
    forgeries,
    freezes,
    full_disk,
    gpu_slots,
    hub_weather,
    kills,
    lineage,
    mlflow_weather,
    postgres,
    predictions,
    races,
    repeats,
    retention_pressure,
    sandbox,
    saving,
    search,
    uploads,
    watchers,
    webhooks,
)
from chaos.rows import Attack

PROCESSES: Final[dict[str, Attack]] = {
    "kills": kills.run,
    "gpu-slots": gpu_slots.run,
    "search": search.run,
    "freezes": freezes.run,
    "predictions": predictions.run,
    "postgres-outages": postgres.outages,
    "mlflow": mlflow_weather.run,
}
REQUESTS: Final[dict[str, Attack]] = {
    "broker": broker.run,
    "races": races.run,
    "cut-commits": postgres.cut_commits,
    "repeats": repeats.run,
    "forgeries": forgeries.run,
    "sandbox": sandbox.run,
    "uploads": uploads.run,
    "webhooks": webhooks.run,
    "watchers": watchers.run,
}
TRAININGS: Final[dict[str, Attack]] = {
    "hub": hub_weather.run,
    "killed-saves": saving.killed_saves,
    "full-disk-saves": saving.full_disk_saves,
    "full-disk": full_disk.run,
    "retention": retention_pressure.run,
    "damaged-checkpoints": damage.run,
    "exact-resume": exact_resume.run,
    "lineage": lineage.run,
}
ATTACKS: Final = {**PROCESSES, **REQUESTS, **TRAININGS}

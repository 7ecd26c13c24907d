"""All attacks by name, in the order of the table.

Each group has a test file of its own, because pytest-xdist gives a file to one process.
"""

from typing import Final

from chaos.attacks.processes import (
    freezes,
    gpu_slots,
    kills,
    mlflow_weather,
    postgres,
    predictions,
    search,
)
from chaos.attacks.requests import (
    broker,
    forgeries,
    races,
    repeats,
    sandbox,
    uploads,
    watchers,
    webhooks,
)
from chaos.attacks.trainings import (
    damage,
    exact_resume,
    full_disk,
    hub_weather,
    lineage,
    retention_pressure,
    saving,
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

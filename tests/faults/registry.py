"""All attacks by name, in the order of the table."""

from typing import Final

from tests.faults import (
    broker,
    damage,
    exact_resume,
    forgeries,
    freezes,
    full_disk,
    hub_weather,
    kills,
    mlflow_weather,
    postgres,
    races,
    repeats,
    saving,
)
from tests.faults.rows import Attack

ATTACKS: Final[dict[str, Attack]] = {
    "kills": kills.run,
    "freezes": freezes.run,
    "broker": broker.run,
    "races": races.run,
    "cut-commits": postgres.cut_commits,
    "postgres-away": postgres.away,
    "mlflow": mlflow_weather.run,
    "hub": hub_weather.run,
    "repeats": repeats.run,
    "forgeries": forgeries.run,
    "killed-saves": saving.killed_saves,
    "full-disk-saves": saving.full_disk_saves,
    "full-disk": full_disk.run,
    "damaged-checkpoints": damage.run,
    "exact-resume": exact_resume.run,
}

"""A device for predictions: one that no training uses or waits for."""

import socket
from collections.abc import Sequence

from service.contract.routing import gpus_of
from service.settings import Settings
from service.store.database import Database
from service.store.interactive import prediction_claims
from worker.devices.gpu_locks import GpuLocks, HeldGpus, try_lock
from worker.devices.gpus import Device


class SpareDevice:
    """`gpus`: those of this worker."""

    def __init__(self, database: Database, settings: Settings, gpus: Sequence[Device]) -> None:
        self._database = database
        self._settings = settings
        self._locks = GpuLocks(settings.devices_dir, gpus) if gpus else None
        self._hostname = socket.gethostname()
        self._cpu_lock = settings.devices_dir / f"predictions-{self._hostname}.lock"

    def take(self, model_bytes: int | None) -> HeldGpus | None:
        """A GPU, or the CPU, which has no UUID; None while trainings come first, or while another
        process of this machine has a model on the CPU. `model_bytes`: None if not known, which is
        too large to share the CPU with trainings."""
        if self._locks is not None:
            held = None if self._is_wanted() else self._locks.acquire(1)
            if held is not None:
                return held
        elif not self._is_wanted():
            return self._take_cpu()
        return self._take_cpu() if self._may_share(model_bytes) else None

    def _take_cpu(self) -> HeldGpus | None:
        descriptor = try_lock(self._cpu_lock)
        return None if descriptor is None else HeldGpus(descriptors=(descriptor,))

    def is_wanted(self, *, on_gpu: bool, model_bytes: int | None) -> bool:
        """Whether a training needs the device that a model is on."""
        if not on_gpu and (self._locks is not None or self._may_share(model_bytes)):
            return False
        return self._is_wanted()

    def _may_share(self, model_bytes: int | None) -> bool:
        return model_bytes is not None and model_bytes <= self._settings.prediction_cpu_bytes

    def _is_wanted(self) -> bool:
        if self._settings.predictions_first:
            return False
        most = 0 if self._locks is None else self._locks.most
        with self._database.read() as session:
            queues = prediction_claims.training_queues(session, self._hostname)
            able = [queue for queue in queues if not most or gpus_of(queue) <= most]
            if prediction_claims.job_waits(session, able, with_gpus=most > 0):
                return True
            # Several trainings may share the CPU, and each leaves nothing for predictions.
            return not most and prediction_claims.trains_on(session, self._hostname)

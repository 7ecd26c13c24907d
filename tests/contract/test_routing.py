"""service.contract.routing: which queue a stage waits in, and who listens there."""

import pytest

from service.contract.routing import QUEUES, consumed_queues, gpus_of, queue_for
from service.contract.states import Stage
from tests.contract.factories import job_spec


class TestQueue:
    @pytest.mark.parametrize(
        ("gpus", "queue"), [(None, "gpu"), (0, "cpu"), (1, "gpu"), (2, "gpu.2"), (64, "gpu.64")]
    )
    def test_of_a_training(self, gpus: int | None, queue: str) -> None:
        spec = job_spec(resources={"gpus": gpus})
        assert queue_for(Stage.TRAIN, spec) == queue
        assert queue in QUEUES
        assert queue_for(Stage.PREPARE, spec) == queue_for(Stage.PUBLISH, spec) == "cpu"
        assert gpus_of(queue) == (1 if gpus is None else gpus)

    def test_of_a_training_that_uses_the_cpu(self) -> None:
        assert queue_for(Stage.TRAIN, job_spec(training={"use_cpu": True})) == "cpu"


class TestHeardBy:
    @pytest.mark.parametrize(
        ("queues", "gpus", "consumed"),
        [
            (["cpu", "gpu"], 0, ["cpu", "gpu"]),
            (["cpu", "gpu"], 1, ["cpu", "gpu"]),
            (["gpu"], 3, ["gpu", "gpu.2", "gpu.3"]),
            (["cpu"], 3, ["cpu"]),
            (["gpu.2"], 3, ["gpu.2"]),
            (["gpu", "gpu.2"], 2, ["gpu", "gpu.2"]),
            (["preview"], 3, ["preview"]),
        ],
    )
    def test_a_worker_with_gpus(self, queues: list[str], gpus: int, consumed: list[str]) -> None:
        assert consumed_queues(queues, gpus) == consumed

    def test_never_more_than_there_are_queues(self) -> None:
        assert set(consumed_queues(["gpu"], 100)) <= set(QUEUES)

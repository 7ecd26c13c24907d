"""The fixtures of a training."""

from tests.training.conftest import make_job, one_thread, own_masks, sequential, tiny_task

__all__ = ["make_job", "one_thread", "own_masks", "sequential", "tiny_task"]

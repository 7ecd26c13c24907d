"""`auto_find_batch_size`: when memory runs out, the same large batch in smaller parts.

The optimizer step that failed is made again from its first example and its first random number, so
that the training is the one that would have begun this step with the smaller size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accelerate.utils.memory import clear_device_cache

from service.contract.failures import FailureCode, StageError
from worker.training import rng
from worker.training.plan import Plan


class Shrunk(Exception):
    """The plan has smaller batches now, and no part of the present optimizer step was made."""


@contextmanager
def shrinking(plan: Plan, apply: Callable[[Plan], None]) -> Iterator[None]:
    """Give `apply` a plan with smaller batches and raise Shrunk, when the memory runs out inside.

    Nothing inside may have changed a weight. StageError(out_of_memory) when batches cannot be
    smaller, or the option is off.
    """
    if not plan.spec.auto_find_batch_size:
        yield
        return
    before = rng.capture()
    try:
        yield
    except StageError as error:
        size = plan.spec.per_device_train_batch_size
        if error.failure.code is not FailureCode.OUT_OF_MEMORY or size == 1:
            raise
        rng.restore(before)
        apply(plan.with_batches_of(_largest_part(size)))
        raise Shrunk from None


def until_shrunk(steps: Callable[[], None]) -> None:
    """Call `steps`. When it is left by Shrunk, give the memory of the attempt back and return."""
    try:
        steps()
        return
    except Shrunk:
        pass
    # Only here, and in no context manager: while the exception is handled, its frames hold the
    # tensors of the attempt.
    clear_device_cache(garbage_collection=True)


def _largest_part(size: int) -> int:
    """Half, or the next smaller size that divides the batch into equal parts."""
    return next(part for part in range(size // 2, 0, -1) if size % part == 0)

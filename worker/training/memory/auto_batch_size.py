"""`auto_find_batch_size`: when memory runs out, the same optimizer step in smaller micro-batches.

The failed step is repeated from its first example and its first random number, so the training
continues as one that had started this step with the smaller size.
"""

from collections.abc import Callable
from typing import TypeVar

from accelerate.utils.memory import clear_device_cache

from worker import failures
from worker.training.plan import Plan
from worker.training.reproducibility import rng

T = TypeVar("T")


def attempt(compute: Callable[[], T], plan: Plan, shrink: Callable[[Plan], None]) -> T | None:
    """What `compute` returns, or None when memory ran out: `shrink` then got a plan with smaller
    micro-batches.

    `compute` must not change a weight. Raises its error when the option is off, or when
    micro-batches have one example already.
    """
    size = plan.spec.per_device_train_batch_size
    if size == 1 or not plan.spec.auto_find_batch_size:
        return compute()
    random_state = rng.capture()
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error):
            raise
    # Only after the handler: the frames of the exception hold the tensors of the attempt.
    rng.restore(random_state)
    # Half, or the next smaller size that divides the micro-batch into equal parts.
    smaller = next(part for part in range(size // 2, 0, -1) if size % part == 0)
    shrink(plan.with_batches_of(smaller))
    clear_device_cache(garbage_collection=True)
    return None

"""Errors of a library that runs a user's model: the model's fault, not the service's.

What a model's files promise is checked in `prepare`. What is left shows when the model computes its
first batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

from service.contract.failures import FailureCode, StageError
from worker import failures
from worker.stages import rank_env
from worker.training.checkpointing.state import State

_MODELS: Final = ("transformers",)
_TOKENIZERS: Final = ("transformers", "tokenizers")


@contextmanager
def in_model(state: State | None = None) -> Iterator[None]:
    """Turn an error out of transformers into StageError(invalid_model); with a `state` until an
    optimizer step is made: a model that has computed one is sound."""
    begin = state.progress.step if state is not None else 0
    try:
        yield
    except Exception as error:
        is_sound = state is not None and state.progress.step > begin
        if is_sound or not _is_fault(error, _MODELS):
            raise
        raise _invalid("The model cannot be loaded or cannot compute a batch", error) from error


@contextmanager
def in_tokenizer() -> Iterator[None]:
    """Turn an error out of the tokenizer, also a panic, into StageError(invalid_model)."""
    try:
        yield
    except BaseException as error:
        # The library's native part raises plain Exceptions, without a frame of its own.
        is_own = type(error) is Exception or _is_fault(error, _TOKENIZERS)
        if not is_own and not failures.is_panic(error):
            raise
        raise _invalid("The tokenizer cannot tokenize the rows", error) from error


def _is_fault(error: BaseException, packages: tuple[str, ...]) -> bool:
    """Whether `error` was raised in code of `packages`, or below it, and has no other reason."""
    if isinstance(error, StageError) or rank_env.is_peer_lost(error):
        return False
    if type(error).__module__.startswith("torch."):  # its compiler, for example
        return False
    if failures.from_exception(error).code is not FailureCode.INTERNAL:
        return False
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in packages for module in modules)


def _invalid(what: str, error: BaseException) -> StageError:
    message = f"{what}: {failures.describe(error)}"
    return StageError(FailureCode.INVALID_MODEL, message)

"""Which memory allocator the stages of a worker on this machine use."""

from service.settings import Settings
from worker.doctor.check import Context, Finding, failed, ok
from worker.processes import allocator


def memory_allocator(context: Context) -> Finding:
    wanted = Settings().malloc
    try:
        found = allocator.find(wanted, with_gpu=bool(context.gpus))
    except allocator.AllocatorError as error:
        return failed(
            "FINETUNE_MALLOC names a library that cannot be loaded",
            reason=str(error),
            remedy="Correct FINETUNE_MALLOC, or unset it: `auto` chooses an installed library.",
        )
    if found == allocator.KEEPING:
        return ok(
            "the C library's, set to keep freed memory; tcmalloc is not installed "
            "(apt: libtcmalloc-minimal4)",
            allocator=found,
        )
    shown = "the C library's, unchanged" if found == allocator.SYSTEM else found
    return ok(shown, allocator=found)

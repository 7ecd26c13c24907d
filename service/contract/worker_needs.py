"""What a job needs of the worker that runs its training, and that not every worker has: a GPU, and
packages that are installed apart."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from service.contract.spec import compatibility
from service.contract.spec.spec import JobSpec
from service.contract.training_arguments.choices import package_of

_INSTALLED_BY: Final = {
    "bitsandbytes": "finetune-service[worker]",
    "deepspeed": "finetune-service[deepspeed]",
    "torchao": "finetune-service[torchao]",
}
PACKAGES: Final = tuple(_INSTALLED_BY)
"""Those that a worker looks for when it starts, and registers."""


class Need(NamedTuple):
    option: str
    """With its value, such as `training.optim: adamw_8bit`."""
    package: str | None
    """None: a GPU."""
    instead: str
    """What to do without."""

    @property
    def path(self) -> str:
        return self.option.partition(":")[0]

    @property
    def remedy(self) -> str:
        if self.package is None:
            return f"start a worker on a machine with a GPU, or {self.instead}"
        install = f"`pip install '{_INSTALLED_BY[self.package]}'`"
        return f"install it ({install}) and restart the worker, or {self.instead}"


def _gpu(job: JobSpec) -> Iterator[Need]:
    for option, instead in compatibility.of_gpus_alone(job.mode, job.training):
        yield Need(option, None, instead)


def _gpu_of_four_bits(job: JobSpec) -> Iterator[Need]:
    if compatibility.has_four_bits(job.peft):
        yield Need("peft.quantization.bits: 4", None, "use 8 bits")


def _of_quantization(job: JobSpec) -> Iterator[Need]:
    if compatibility.quantization_of(job.peft) is not None:
        yield Need("peft.quantization", "bitsandbytes", "leave it out")


def _of_optimizer(job: JobSpec) -> Iterator[Need]:
    package = package_of(job.training.optim) if job.trains else None
    if package is not None:
        yield Need(f"training.optim: {job.training.optim}", package, "use `adamw_torch`")


def _of_strategy(job: JobSpec) -> Iterator[Need]:
    if job.resources.chosen_strategy.type == "deepspeed":
        yield Need("resources.strategy: deepspeed", "deepspeed", "use `fsdp`")


NEEDS: Final[tuple[Callable[[JobSpec], Iterator[Need]], ...]] = (
    _gpu,
    _gpu_of_four_bits,
    _of_quantization,
    _of_optimizer,
    _of_strategy,
)
"""Each reads as few sections as it needs, so that a fault in another section does not hide it."""

"""worker.training.distributed.fsdp and wrapping, in a group of one process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor

from service.contract.failures import FailureCode, StageError
from service.contract.spec.fsdp import FSDPSpec
from service.contract.spec.spec import JobSpec
from tests.contract.factories import job_spec
from tests.training.support.jobs import tiny_model
from worker.training.distributed import fsdp, fsdp_wrapping
from worker.training.distributed.fsdp import FSDPStrategy
from worker.training.distributed.ranks import Ranks
from worker.training.fast_paths import FastPaths


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    path = str(tmp_path / "store")
    store = torch.distributed.FileStore(path, 1)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def spec(**options: Any) -> JobSpec:
    strategy = {"type": "fsdp", **options}
    return job_spec(resources={"gpus": 2, "strategy": strategy})


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters())


def made(**options: Any) -> FSDPStrategy:
    def build(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters())

    return FSDPStrategy(Accelerator(cpu=True), tiny_model(0.0), build, spec(**options), Ranks())


def loss(strategy: FSDPStrategy) -> torch.Tensor:
    tokens = torch.arange(8)[None]
    value: torch.Tensor = strategy.model(input_ids=tokens, labels=tokens).loss
    return value


@pytest.mark.usefixtures("group")
class TestOptions:
    @pytest.mark.parametrize("reshard", [True, False])
    def test_reshard_after_forward(self, reshard: bool) -> None:
        strategy = made(reshard_after_forward=reshard)
        loss(strategy)
        inner = strategy.model.transformer.h[0].attn.c_attn.weight
        assert isinstance(inner, DTensor) is reshard

    @pytest.mark.parametrize("each", [True, False])
    def test_sync_each_batch(self, each: bool) -> None:
        """Without it the gradients stay whole until the last part."""
        strategy = made(sync_each_batch=each)
        inner = strategy.model.transformer.h[0].attn.c_attn.weight
        with strategy.accumulate(last=False):
            strategy.backward(loss(strategy))
        assert (inner.grad is not None) is each
        with strategy.accumulate(last=True):
            strategy.backward(loss(strategy))
        assert isinstance(inner.grad, DTensor)

    def test_mixed_precision_policy(self) -> None:
        seen: list[torch.dtype] = []
        strategy = made(mixed_precision_policy={"param_dtype": "bfloat16"})
        head = strategy.model.lm_head
        head.register_forward_hook(lambda module, *_: seen.append(module.weight.dtype))
        assert loss(strategy).dtype == torch.float32
        assert seen == [torch.bfloat16]

    def test_weights_that_are_not_finite_are_seen(self) -> None:
        strategy = made()
        assert strategy.has_finite_weights()
        with torch.no_grad():
            strategy.model.transformer.ln_f.bias.to_local()[0] = torch.inf
        assert not strategy.has_finite_weights()

    def test_shared_weights_stay_shared_in_the_whole_copy(self) -> None:
        strategy = made()
        with strategy.full_model() as model:
            assert model.lm_head.weight is model.transformer.wte.weight
            for name, value in tiny_model(0.0).named_parameters():
                assert torch.equal(model.get_parameter(name), value)


class TestPolicies:
    def test_cpu_offload(self) -> None:
        """Sums of what waits on the CPU need a group that can make them there."""
        (waiting,) = FSDPStrategy.accelerator_arguments(spec(cpu_offload=True, timeout=7))[
            "kwargs_handlers"
        ]
        assert waiting.backend == "cpu:gloo,cuda:nccl"
        assert waiting.timeout.total_seconds() == 7
        (plain,) = FSDPStrategy.accelerator_arguments(spec())["kwargs_handlers"]
        assert plain.backend is None
        assert isinstance(fsdp.offloading(FSDPSpec(cpu_offload=True)), CPUOffloadPolicy)
        assert type(fsdp.offloading(FSDPSpec())) is OffloadPolicy

    def test_dtypes(self) -> None:
        given = FSDPSpec.model_validate(
            {"mixed_precision_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}}
        )
        assert fsdp.precision(given, torch.float32) == MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
        assert fsdp.precision(FSDPSpec(), torch.float32) == MixedPrecisionPolicy()


class TestInJobPrecision:
    def policy(
        self, device: str, paths: FastPaths, bf16: bool = True, **options: Any
    ) -> dict[str, Any] | None:
        made = job_spec(
            training={"bf16": bf16},
            resources={"gpus": 2, "strategy": {"type": "fsdp", **options}},
        )
        held = fsdp.in_job_precision(made, torch.device(device), paths).resources.chosen_strategy
        assert isinstance(held, FSDPSpec)
        found = held.mixed_precision_policy
        return None if found is None else found.model_dump()

    HALVES: ClassVar = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}

    def test_halves_on_a_gpu_alone(self) -> None:
        assert self.policy("cuda", FastPaths()) == self.HALVES
        assert self.policy("cuda", FastPaths(), bf16=False) is None
        assert self.policy("cpu", FastPaths()) is None

    def test_what_the_job_reports(self) -> None:
        paths = FastPaths()
        given = {"param_dtype": "float32", "reduce_dtype": None}
        assert self.policy("cuda", paths, mixed_precision_policy=given) == given
        assert paths.chosen == {}

    def test_a_resumed_training_keeps_what_it_began_with(self) -> None:
        for device in ("cpu", "cuda"):
            begun = FastPaths()
            policy = self.policy(device, begun)
            recorded = json.loads(json.dumps(begun.chosen))
            for other in ("cpu", "cuda"):
                assert self.policy(other, FastPaths(chosen=recorded)) == policy

    def test_other_strategies(self) -> None:
        made = job_spec(training={"bf16": True})
        assert fsdp.in_job_precision(made, torch.device("cuda"), FastPaths()) is made


@pytest.mark.usefixtures("group")
class TestHeldForTheBackwardPass:
    """Under autocast, as the job runs it."""

    def bytes_of_weights(self, device: str) -> tuple[int, int]:
        """Of the casts that autocast keeps, and of the weights of all blocks in bfloat16."""
        AcceleratorState._reset_state(reset_partial_state=True)
        held = fsdp.in_job_precision(
            job_spec(training={"bf16": True}, resources={"gpus": 2, "strategy": {"type": "fsdp"}}),
            torch.device(device),
            FastPaths(),
        )
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        strategy = FSDPStrategy(accelerator, tiny_model(0.0), sgd, held, Ranks())
        shapes = {
            each.shape for each in strategy.model.transformer.h.parameters() if each.dim() == 2
        }
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            is_cast = tensor.dtype is torch.bfloat16 and tensor.shape in shapes
            storage = tensor.untyped_storage()
            if is_cast and storage.data_ptr() not in gathered():
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        def gathered() -> set[int]:
            return {
                each.untyped_storage().data_ptr()
                for each in strategy.model.parameters()
                if not isinstance(each, DTensor)
            }

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss(strategy)
        return sum(kept.values()), 2 * sum(shape.numel() for shape in shapes)

    def test_no_copies(self) -> None:
        assert self.bytes_of_weights("cuda")[0] == 0
        kept, whole = self.bytes_of_weights("cpu")
        assert kept > whole


class TestBlocks:
    def classes(self, **options: Any) -> list[str]:
        found = fsdp_wrapping.blocks(tiny_model(), FSDPSpec.model_validate(options))
        return [type(module).__name__ for module in found]

    def test_by_class(self) -> None:
        assert self.classes() == ["GPT2Block"] * 2
        named = self.classes(transformer_layer_cls_to_wrap=["GPT2MLP", "GPT2Block"])
        assert named == ["GPT2MLP", "GPT2Block"] * 2
        assert self.classes(auto_wrap_policy="no_wrap") == []

    def test_by_size_without_what_shares_its_weights(self) -> None:
        by_size = {"auto_wrap_policy": "size_based_wrap"}
        found = self.classes(**by_size, min_num_params=4000)
        assert found == ["Conv1D", "Conv1D", "GPT2Attention"] * 2  # and not the tied embeddings
        assert self.classes(**by_size) == []

    def test_a_head_of_its_own_stays_with_the_rest(self) -> None:
        """Its weight is used after its forward pass."""
        model: Any = tiny_model()
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        by_size = FSDPSpec(auto_wrap_policy="size_based_wrap", min_num_params=1500)
        names = [type(module).__name__ for module in fsdp_wrapping.blocks(model, by_size)]
        assert "Embedding" in names
        assert "Linear" not in names

    def test_a_type_that_names_no_blocks(self) -> None:
        model: Any = tiny_model()
        model._no_split_modules = None
        found = fsdp_wrapping.blocks(model, FSDPSpec())
        assert [type(module).__name__ for module in found] == ["GPT2Block"] * 2

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("Block", "names Block, but the model has modules of Conv1D, Dropout, Embedding"),
            ("Linear", "names Linear, whose weights are also used outside of them"),
        ],
    )
    def test_refusals(self, name: str, sentence: str) -> None:
        with pytest.raises(StageError) as caught:
            self.classes(transformer_layer_cls_to_wrap=[name])
        failure = caught.value.failure
        assert failure.code is FailureCode.INVALID_OPTION
        option = "resources.strategy.transformer_layer_cls_to_wrap"
        assert failure.message.startswith(f"`{option}` {sentence}")

"""service.contract.spec.resources: processes, GPUs and how they work together."""

import re
from dataclasses import fields
from typing import Any

import pytest
from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from pydantic import ValidationError

from service.contract.spec.deepspeed import REFUSED_DEEPSPEED, DeepSpeedSpec
from service.contract.spec.fsdp import REFUSED_FSDP, FSDPSpec
from service.contract.spec.resources import DDPSpec, ResourcesSpec
from tests.contract.factories import job_spec


class TestProcesses:
    @pytest.mark.parametrize(
        ("given", "processes"),
        [
            ({}, 1),
            ({"gpus": 0}, 1),
            ({"gpus": 1}, 1),
            ({"gpus": 4}, 4),
            ({"gpus": 4, "num_processes": 4}, 4),
            ({"gpus": 0, "num_processes": 2}, 2),
        ],
    )
    def test_one_for_each_gpu(self, given: dict[str, int], processes: int) -> None:
        assert ResourcesSpec.model_validate(given).processes == processes

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"gpus": 4, "num_processes": 2}, "one process for each GPU, but `gpus` is 4"),
            ({"num_processes": 2}, "`num_processes: 2` needs `gpus`"),
            ({"gpus": 65}, "less than or equal to 64"),
            ({"gpus": 0, "num_processes": 65}, "less than or equal to 64"),
            ({"strategy": "ddp"}, "`strategy` is for several processes"),
            ({"gpus": 1, "strategy": "ddp"}, "`strategy` is for several processes"),
        ],
    )
    def test_contradictions(self, given: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            ResourcesSpec.model_validate(given)

    @pytest.mark.parametrize("option", [{"auto_find_batch_size": True}, {"on_oom": "halve_batch"}])
    def test_smaller_batches_by_themselves_are_for_one(self, option: dict[str, Any]) -> None:
        job_spec(training=option, resources={"gpus": 1})
        with pytest.raises(ValidationError, match="works with one process only"):
            job_spec(training=option, resources={"gpus": 2})

    @pytest.mark.parametrize("cpu", [{"resources": {"gpus": 0}}, {"training": {"use_cpu": True}}])
    @pytest.mark.parametrize(
        ("training", "sentence"),
        [
            ({"fp16": True}, "`training.precision: fp16` needs a GPU: on a CPU use `bf16`"),
            ({"precision": "fp16"}, "`training.precision: fp16` needs a GPU"),
            ({"fp16_full_eval": True}, "on a CPU use `bf16_full_eval`"),
            ({"tf32": True}, "`training.tf32: true` needs a GPU: on a CPU leave it out"),
            (
                {"torch_compile": True, "torch_compile_backend": "cudagraphs"},
                "on a CPU use `inductor`",
            ),
            ({"optim": "paged_adamw_32bit"}, "on a CPU use `adamw_torch`"),
            ({"optim": "paged_ademamix_32bit"}, "on a CPU use `ademamix`"),
            ({"optim": "paged_lion_8bit"}, "on a CPU use `lion_8bit`"),
        ],
    )
    def test_a_cpu_does_not_have_what_a_gpu_has(
        self, cpu: dict[str, Any], training: dict[str, Any], sentence: str
    ) -> None:
        job_spec(training=training)
        with pytest.raises(ValidationError, match=sentence):
            job_spec(**{**cpu, "training": {**training, **cpu.get("training", {})}})

    def test_an_optimizer_matters_only_where_something_is_trained(self) -> None:
        dataset = {"source": "hub", "name": "org/data", "validation": "test"}
        paged = {"optim": "paged_lion_8bit", "use_cpu": True}
        job_spec(mode="evaluate", dataset=dataset, training=paged)


class TestStrategy:
    def test_its_name_alone_means_its_defaults(self) -> None:
        given = ResourcesSpec.model_validate({"gpus": 2, "strategy": "ddp"})
        assert given.strategy == given.chosen_strategy == DDPSpec()
        assert ResourcesSpec.model_validate({"gpus": 2, "strategy": "fsdp"}).strategy == FSDPSpec()
        sharded = ResourcesSpec.model_validate({"gpus": 2, "strategy": "deepspeed"})
        assert sharded.strategy == DeepSpeedSpec(zero_stage=2)
        unnamed = ResourcesSpec.model_validate({"gpus": 2, "strategy": {"timeout": 5}})
        assert unnamed.strategy == DDPSpec(timeout=5)
        assert ResourcesSpec(gpus=2).chosen_strategy == DDPSpec()

    @pytest.mark.parametrize(
        ("strategy", "sentence"),
        [
            ({"type": {}}, "does not match any of the expected tags: 'ddp', 'fsdp', 'deepspeed'"),
            ({"type": "deepspeed", "zero_stage": {}}, "Input should be 1 or 2"),
            ({"type": "deepspeed", "offload_optimizer_device": {}}, "Input should be"),
            ({"type": "fsdp", "auto_wrap_policy": {}}, "Input should be"),
            ({"type": "ddp", "bucket_cap": 1}, "Extra inputs are not permitted"),
            ({"type": "ddp", "bucket_cap_mb": 0}, "greater than or equal to 1"),
            ({"type": "ddp", "timeout": 0}, "greater than or equal to 1"),
            (
                {"type": "dpp"},
                "does not match any of the expected tags: 'ddp', 'fsdp', 'deepspeed'",
            ),
        ],
    )
    def test_refusals(self, strategy: Any, sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            ResourcesSpec.model_validate({"gpus": 2, "strategy": strategy})


class TestFSDP:
    @pytest.mark.parametrize("name", REFUSED_FSDP)
    def test_what_the_plugin_has_and_we_refuse(self, name: str) -> None:
        with pytest.raises(
            ValidationError, match=re.escape(f"`{name}` is refused: {REFUSED_FSDP[name]}")
        ):
            FSDPSpec.model_validate({name: "any"})

    def test_all_of_the_plugin_is_known(self) -> None:
        """An upgrade of Accelerate cannot add an option unseen."""
        own = set(FSDPSpec.model_fields) - {"type", "timeout", "sync_each_batch"}
        renamed = {"transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap"}
        theirs = {renamed.get(f.name, f.name) for f in fields(FullyShardedDataParallelPlugin)}
        internal = {"optim_state_dict_config", "param_init_fn", "state_dict_config"}
        assert theirs - internal == own | REFUSED_FSDP.keys()

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"min_num_params": 5}, "`min_num_params` needs `auto_wrap_policy: size_based_wrap`"),
            (
                {"auto_wrap_policy": "no_wrap", "transformer_layer_cls_to_wrap": ["Block"]},
                "`transformer_layer_cls_to_wrap` needs `auto_wrap_policy: transformer_based_wrap`",
            ),
            ({"mixed_precision_policy": {"param_dtype": "float16"}}, "'float32' or 'bfloat16'"),
        ],
    )
    def test_options_that_do_not_fit(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            FSDPSpec.model_validate(options)


class TestDeepSpeed:
    @pytest.mark.parametrize("name", REFUSED_DEEPSPEED)
    def test_what_is_refused_with_a_reason(self, name: str) -> None:
        sentence = f"`{name}` is refused: {REFUSED_DEEPSPEED[name]}"
        with pytest.raises(ValidationError, match=re.escape(sentence)):
            DeepSpeedSpec.model_validate({name: "any"})

    def test_all_of_the_plugin_is_known(self) -> None:
        """An upgrade of Accelerate cannot add an option unseen."""
        theirs = {field.name for field in fields(DeepSpeedPlugin)}
        internal = {"deepspeed_config"}
        assert theirs - internal <= DeepSpeedSpec.model_fields.keys() | REFUSED_DEEPSPEED.keys()

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"zero_stage": 3}, "`zero_stage: 3` is refused: `fsdp` splits weights, too"),
            ({"zero_stage": 0}, "`zero_stage: 0` is refused: it is `ddp`"),
            ({"zero_stage": 4}, "Input should be 1 or 2"),
            ({"offload_optimizer_device": "nvme"}, "nvme` is refused: nothing is kept on disks"),
            ({"allgather_bucket_size": 3}, "multiple of 2"),
            ({"reduce_bucket_size": 0}, "greater than or equal to 1"),
            ({"stage": 2}, "Extra inputs are not permitted"),
        ],
    )
    def test_options_that_do_not_fit(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            DeepSpeedSpec.model_validate(options)


QUANTIZED = {"peft": {"method": "lora", "quantization": {"bits": 8}}}
OFFLOADED = {"gpus": 0, "num_processes": 2, "strategy": {"type": "fsdp", "cpu_offload": True}}


@pytest.mark.parametrize(
    ("strategy", "section", "sentence"),
    [
        ("fsdp", {"training": {"optim": "adafactor"}}, "`training.optim: adafactor` needs whole"),
        ("fsdp", {"training": {"fp16": True}}, "with `fsdp` use `bf16`"),
        ("fsdp", {"training": {"torch_compile": True}}, "does not work with `fsdp`"),
        ("fsdp", {"training": {"bf16_full_eval": True}}, "that `fsdp` has sharded"),
        ("fsdp", QUANTIZED, "`peft.quantization` packs weights so that `fsdp` cannot shard them"),
        ("fsdp", {"resources": OFFLOADED}, "`resources.strategy.cpu_offload` is for GPUs"),
        ("deepspeed", {"training": {"optim": "adagrad"}}, "cannot update the shards"),
        ("deepspeed", {"training": {"optim": "adafactor"}}, "use one of `adamw_torch`"),
        ("deepspeed", {"training": {"fp16": True}}, "with `deepspeed` use `bf16`"),
        ("deepspeed", {"training": {"torch_compile": True}}, "does not work with `deepspeed`"),
        ("deepspeed", {"training": {"bf16_full_eval": True}}, "that `deepspeed` updates"),
        ("deepspeed", {"training": {"on_oom": "halve_batch"}}, "works with one process only"),
        ("deepspeed", QUANTIZED, "so that `deepspeed` cannot shard them"),
        (
            "deepspeed",
            {"model": {"name_or_path": "org/model", "dtype": "bfloat16"}},
            "`model.dtype: bfloat16`: `deepspeed` needs `float32` weights",
        ),
    ],
)
def test_what_strategies_that_shard_contradict(
    strategy: str, section: dict[str, Any], sentence: str
) -> None:
    resources = {"resources": {"gpus": 2, "strategy": strategy}}
    with pytest.raises(ValidationError, match=sentence):
        job_spec(**{**resources, **section})
    job_spec(**resources)

"""worker.training.optim.optimizers: each by its name, as transformers.Trainer would build it."""

import copy
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from transformers.training_args import OptimizerNames

from service.contract.failures import FailureCode, StageError
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.choices import (
    OPTIMIZER_ARGUMENTS,
    Optimizer,
    package_of,
)
from service.contract.training_arguments.refused_options import REFUSED_OPTIMIZERS
from tests.training.checkpointing.resuming import assert_resumes
from tests.training.support.factories import tiny_bert
from tests.training.support.jobs import Job, fails_with, run, tiny_model
from worker.training.optim import optimizers


def built(model: torch.nn.Module, spec: TrainingSpec, device: str = "cpu") -> torch.optim.Optimizer:
    return optimizers.build(model, spec, torch.device(device))


def trainer_groups(model: Any, folder: Path) -> list[set[str]]:
    """Names with and without decay, by transformers.Trainer."""
    args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none")
    decayed = set(transformers.Trainer(model=model, args=args).get_decay_parameter_names(model))
    names = {name for name, _ in model.named_parameters()}  # a tied weight has one of its two
    return [decayed & names, names - decayed]


class TestParameterGroups:
    @pytest.mark.parametrize("make", [tiny_bert, tiny_model])
    def test_no_decay_on_biases_and_norms(self, make: Any, tmp_path: Path) -> None:
        model = make()
        names = {value: name for name, value in model.named_parameters()}
        groups = optimizers.parameter_groups(model, 0.1)
        found = [{names[value] for value in group["params"]} for group in groups]
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
        assert found == trainer_groups(model, tmp_path)
        assert {name for name in names.values() if name.endswith("bias")} <= found[1]
        modules = dict(model.named_modules())
        norms = {n for n, m in modules.items() if isinstance(m, torch.nn.LayerNorm)}
        assert norms
        assert {f"{name}.weight" for name in norms} <= found[1]

    def test_frozen_weights_are_in_no_group(self) -> None:
        model = tiny_bert()
        model.bert.requires_grad_(False)
        groups = optimizers.parameter_groups(model, 0.1)
        assert [len(group["params"]) for group in groups] == [1, 1]


# Name, `optim_args`, options of the spec.
FROM_TORCH = [
    ("adamw_torch", None),
    ("adamw_torch_fused", None),
    ("adafactor", None),
    ("sgd", None),
    ("sgd", "momentum=0.9, nesterov=true"),
    ("adagrad", "lr_decay=0.1,eps=1e-6"),
    ("rmsprop", "momentum=0.5, alpha=0.8, centered=yes"),
]
FROM_BITSANDBYTES = [
    ("adamw_bnb_8bit", None),
    ("adamw_8bit", None),
    ("paged_adamw_32bit", None),
    ("paged_adamw_8bit", None),
    ("ademamix", "beta3=0.99, alpha=3, t_alpha=7"),
    ("ademamix_8bit", None),
    ("paged_ademamix_32bit", None),
    ("paged_ademamix_8bit", None),
    ("lion_32bit", None),
    ("lion_8bit", None),
    ("paged_lion_32bit", None),
    ("paged_lion_8bit", None),
    ("rmsprop_bnb", None),
    ("rmsprop_bnb_32bit", None),
    ("rmsprop_bnb_8bit", None),
]
FROM_TORCHAO = [
    ("adamw_torch_8bit", "block_size=128"),
    ("adamw_torch_4bit", None),
]
needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)


class TestAgainstTrainer:
    """Its class and each of its arguments are those that Trainer's own builder gives."""

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            *FROM_TORCH,
            *FROM_BITSANDBYTES,
            *(pytest.param(*given, marks=needs_torchao) for given in FROM_TORCHAO),
        ],
    )
    def test_class_and_arguments(self, name: str, arguments: str | None, tmp_path: Path) -> None:
        options: dict[str, Any] = {
            "optim": name,
            "optim_args": arguments,
            "learning_rate": 0.3,
            "weight_decay": 0.1,
            "adam_beta1": 0.7,
            "adam_beta2": 0.8,
            "adam_epsilon": 1e-5,
        }
        # A paged one is built, but makes no step, where there is no GPU.
        ours = built(tiny_bert(), TrainingSpec(**options), "cuda")
        args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)
        theirs = transformers.Trainer(model=tiny_bert(), args=args).create_optimizer()
        assert type(ours) is type(theirs)
        shown = [
            {key: value for key, value in group.items() if key != "params"}
            for group in ours.param_groups
        ]
        expected = [
            {key: value for key, value in group.items() if key != "params"}
            for group in theirs.param_groups
        ]
        assert shown == expected

    def test_every_name_of_transformers_is_built_or_refused(self) -> None:
        of_4x = {"adamw_apex_fused"}
        known = {name.value for name in OptimizerNames} | of_4x
        assert known == set(optimizers.REGISTRY) | set(REFUSED_OPTIMIZERS)
        assert not set(optimizers.REGISTRY) & set(REFUSED_OPTIMIZERS)
        assert set(get_args(Optimizer)) == set(optimizers.REGISTRY)
        assert set(OPTIMIZER_ARGUMENTS) <= known

    def test_a_package_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with fails_with(FailureCode.INVALID_OPTION, "needs the package bitsandbytes"):
            built(tiny_bert(), TrainingSpec(optim="lion_8bit"))

    def test_the_package_of_each_is_known_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The service refuses a spec by `package_of` where no worker has the package."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        model, found = tiny_bert(), dict[str, str | None]()
        for name, build in optimizers.REGISTRY.items():
            spec = TrainingSpec.model_validate({"optim": name})
            groups = optimizers.parameter_groups(model, 0.0)
            request = optimizers.Request(model, groups, spec, {}, torch.device("cuda"))
            try:
                build(request)
                found[name] = None
            except StageError as error:
                found[name] = re.findall(r"the package (\w+)", error.failure.message)[0]
        assert found == {name: package_of(name) for name in get_args(Optimizer)}

    @pytest.mark.parametrize("arguments", ["momentum=much", "nesterov=perhaps", "nesterov=true"])
    def test_an_argument_that_does_not_fit(self, arguments: str) -> None:
        with pytest.raises(StageError, match="`sgd` cannot be built") as caught:
            built(tiny_bert(), TrainingSpec(optim="sgd", optim_args=arguments))
        assert caught.value.failure.details == {"option": "training.optim_args"}

    def test_paged_ones_need_a_gpu(self) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "is `paged_adamw_8bit`, which needs a GPU"):
            built(tiny_bert(), TrainingSpec(optim="paged_adamw_8bit"))

    def test_torchao_on_a_cpu_needs_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(StageError, match=r"needs a C\+\+ compiler"):
            built(tiny_bert(), TrainingSpec(optim="adamw_torch_8bit"))


EIGHT_BITS = ["adamw_8bit", "lion_8bit", "rmsprop_bnb_8bit", "ademamix_8bit"]


class TestEmbeddingsIn32Bits:
    """As Trainer's own optimizer keeps them, by real steps of both."""

    @pytest.mark.parametrize("name", EIGHT_BITS)
    def test_dtypes_are_those_of_trainer(self, name: str, tmp_path: Path) -> None:
        ours = _stepped(_large_embedding(), lambda model: built(model, TrainingSpec(optim=name)))
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, report_to="none", optim=name
        )
        theirs = _stepped(
            _large_embedding(),
            lambda model: transformers.Trainer(model=model, args=args).create_optimizer(),
        )
        assert _state_dtypes(*ours) == _state_dtypes(*theirs)
        found = _state_dtypes(*ours)
        assert found["transformer.wte.weight"] == torch.float32
        assert found["transformer.h.0.mlp.c_fc.weight"] == torch.uint8

    def test_nothing_is_asked_of_the_next_optimizer(self) -> None:
        """The places of overridden weights are kept in a global, for whatever comes there."""
        _stepped(_large_embedding(), lambda model: built(model, TrainingSpec(optim="adamw_8bit")))
        linear = torch.nn.Linear(128, 64)
        optimizer = built(linear, TrainingSpec(optim="adamw_8bit"))
        linear(torch.ones(1, 128)).sum().backward()
        optimizer.step()
        assert optimizer.state[linear.weight]["state1"].dtype == torch.uint8

    @pytest.mark.parametrize("name", EIGHT_BITS)
    def test_a_resumed_state_makes_the_same_step(self, name: str) -> None:
        def build(model: Any) -> torch.optim.Optimizer:
            return built(model, TrainingSpec(optim=name))

        model, optimizer = _stepped(_large_embedding(), build)
        copied = copy.deepcopy(model)
        again = build(copied)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        _step(model, optimizer)
        _step(copied, again)
        for (name, one), other in zip(model.named_parameters(), copied.parameters(), strict=True):
            assert torch.equal(one, other), name


def _large_embedding() -> Any:
    """Of more than the 4096 numbers below which nothing is quantised."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=200, n_positions=8, n_embd=32, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def _stepped(
    model: Any, build: Callable[[Any], torch.optim.Optimizer]
) -> tuple[Any, torch.optim.Optimizer]:
    optimizer = build(model)
    _step(model, optimizer)
    return model, optimizer


def _step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    tokens = torch.arange(16).view(2, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _state_dtypes(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.dtype]:
    return {
        name: optimizer.state[value]["state1"].dtype for name, value in model.named_parameters()
    }


class TestTraining:
    """Each takes real steps in the real stage, resumes exactly, and differs from the others."""

    def test_weights_differ_from_one_to_the_next(self, make_job: Callable[..., Job]) -> None:
        names = ("adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop", "lion_32bit", "ademamix")
        seen = [
            run(make_job(max_steps=2, optim=name, save_strategy="no").request())[0].weights_sha256
            for name in names
        ]
        assert len(set(seen)) == len(names)

    @pytest.mark.parametrize(
        "name", ["adamw_8bit", "lion_8bit", "rmsprop_bnb_8bit", "ademamix_8bit", "adagrad"]
    )
    def test_a_resumed_run_is_the_same(self, make_job: Callable[..., Job], name: str) -> None:
        assert_resumes(make_job(max_steps=4, optim=name, save_steps=2), 2)

    @needs_torchao
    @pytest.mark.parametrize("name", ["adamw_torch_8bit", "adamw_torch_4bit"])
    def test_low_bits_resume_exactly(self, make_job: Callable[..., Job], name: str) -> None:
        """Without compiling, which would take half a minute for each shape."""
        with torch.compiler.set_stance("force_eager"):
            whole, _ = assert_resumes(make_job(max_steps=4, optim=name, save_steps=2), 2)
        assert whole.weights_sha256 != run(make_job(max_steps=4).request())[0].weights_sha256

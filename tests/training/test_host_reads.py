"""No optimizer step asks the device for a number: it would wait for all that was given it before.

Without a GPU the steps are made on the CPU with the attention of a GPU, and what would have to be
read there is looked for among torch's operations.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import masking_utils
from transformers.masking_utils import sdpa_mask

from service.contract.stage.events import Notice
from tests.data.squad_sample import squad_rows
from tests.support.gpus import packed_kernels
from tests.support.gpus.packed_kernels import PackedKernels
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.host_reads import HostReadError, HostReads, HostReadsOnGPU
from worker.tasks import registry
from worker.tasks.language_modeling.causal_lm import CausalLM
from worker.training import build
from worker.training.kernels import attention_masks
from worker.training.run import TrainingRun

HAS_GPU = torch.cuda.is_available()
TEXTS = [{"text": "the report of the water board was read " * count} for count in (1, 2, 4)] * 8


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> HostReads:
    """Forbidden in each step, but for what is done with batches before they are on the device."""
    found = HostReadsOnGPU() if HAS_GPU else HostReads()
    monkeypatch.setitem(registry.REGISTRY, "causal-lm", CausalLM())
    if not HAS_GPU:
        install, gpu = build.install_fast_modules, torch.device("cuda")
        monkeypatch.setattr(
            build,
            "install_fast_modules",
            lambda model, spec, _cpu: install(model, spec, gpu),
        )
    return found


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackedKernels]:
    """Of the GPU's attention over packed batches; not looked at where there is a GPU."""
    if HAS_GPU:
        yield PackedKernels()
        return
    with packed_kernels.as_on_ampere(monkeypatch) as made:
        yield made


def watch(monkeypatch: pytest.MonkeyPatch, reads: HostReads) -> None:
    made = TrainingRun.__post_init__

    def watched(run: TrainingRun) -> None:
        made(run)
        run.loss_sum = reads.watching(run.loss_sum)
        strategy: Any = run.state.strategy
        strategy.backward = reads.watching(strategy.backward)
        strategy.step = reads.watching(strategy.step)
        run.state.tally.add = reads.watching(run.state.tally.add)  # type: ignore[method-assign]

    monkeypatch.setattr(TrainingRun, "__post_init__", watched)


TALKS = [{"prompt": each["text"][:60], "completion": each["text"][:20]} for each in TEXTS]
SUMMARIES = [{"text": each["text"], "summary": each["text"][:20]} for each in TEXTS]
QUESTIONS: dict[str, Any] = {"type": "question-answering", "max_seq_length": 96, "doc_stride": 32}
LINES: dict[str, Any] = {"type": "masked-lm", "max_seq_length": 16, "line_by_line": True}
BLOCKS: dict[str, Any] = {"type": "causal-lm", "block_size": 16}
DOCUMENTS = {**BLOCKS, "separate_documents": True}
PACKED: dict[str, Any] = {"type": "causal-lm", "block_size": 64, "packing": "bfd"}
CHAT: dict[str, Any] = {"type": "chat", "packing": "bfd"}
SHORT_SUMMARIES = {"type": "summarization", "max_source_length": 32, "max_target_length": 8}


def job_for(task: dict[str, Any], home: Path) -> StagedJob:
    model, data = home / "model", TEXTS
    if task is QUESTIONS:
        save_tiny_bert(model)
        data = squad_rows("train", "1.1")[:12]
    elif task is LINES:
        save_tiny_bert(model)
    elif task is CHAT:
        save_tiny_llama(model)
        data = TALKS
    elif task is SHORT_SUMMARIES:
        save_tiny_t5(model, [TEXTS[0]["text"]])
        data = SUMMARIES
    else:
        save_tiny_gpt2(model)
    return job_of(home, task, model, {"train": data})


@pytest.mark.parametrize(
    ("task", "packs"),
    [
        (QUESTIONS, True),
        (QUESTIONS, False),
        (LINES, True),
        (BLOCKS, False),
        (DOCUMENTS, False),
        (PACKED, True),
        (CHAT, True),
        (SHORT_SUMMARIES, False),
    ],
)
def test_steps_read_nothing_from_the_device(
    task: dict[str, Any],
    packs: bool,
    kernels: PackedKernels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: HostReads,
) -> None:
    job = job_for(task, tmp_path)
    options: dict[str, Any] = {"max_steps": 3, "logging_steps": 3, "save_strategy": "no"}
    options |= {"per_device_train_batch_size": 4, "precision": "bf16" if HAS_GPU else "fp32"}
    if task is QUESTIONS and not packs:
        options["padding_free"] = False
    job.body |= {"training": options, "resources": {"gpus": int(HAS_GPU)}}
    watch(monkeypatch, reads)
    result, recorder = job.train()
    assert result.steps == 3
    joined = [each for each in recorder.of(Notice) if each.data.get("padding_free")]
    # A causal language model's blocks are whole, and it may join batches although it need not.
    assert bool(joined) == (packs or task in (BLOCKS, DOCUMENTS))
    if packs and not HAS_GPU:
        assert max(max(call["sizes"]) for call in kernels.calls[-2:]) > 8
    assert reads.calls == 4 * 3
    assert list(recorder.train_values("loss")) == [3]


class TestMasks:
    """worker.training.kernels.attention_masks: the masks are transformers' own, unread."""

    @pytest.mark.parametrize("lengths", [(5, 5), (5, 3)])
    @pytest.mark.parametrize("causal", [False, True])
    def test_are_the_same(self, lengths: tuple[int, int], causal: bool) -> None:
        mask = torch.arange(5) < torch.tensor(lengths)[:, None]
        skips = {"allow_is_causal_skip": causal, "allow_is_bidirectional_skip": not causal}
        options: dict[str, Any] = {"batch_size": 2, "q_length": 5, "kv_length": 5, **skips}
        expected = sdpa_mask(attention_mask=mask, **options)
        assert (expected is None) == (lengths == (5, 5))
        attention_masks.read_batch({"attention_mask": mask.long()})
        with HostReads().forbidden():
            found = attention_masks.mask(attention_mask=mask, **options)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert torch.equal(found, expected)

    def test_without_a_batch_it_is_read(self) -> None:
        mask = torch.ones(2, 5, dtype=torch.bool)
        options: dict[str, Any] = {"batch_size": 2, "q_length": 5, "kv_length": 5}
        options["attention_mask"] = mask
        attention_masks.read_batch({"input_ids": mask.long()})
        assert attention_masks.mask(**options) is None
        with HostReads().forbidden(), pytest.raises(HostReadError):
            attention_masks.mask(**options)


DECODER: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
SHORT: dict[str, Any] = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2}
SMALL = {
    "gpt2": {**SHORT, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
    "gpt_neo": {
        **{"vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2},
        **{"attention_types": [[["global", "local"], 1]], "window_size": 4},
        **{"bos_token_id": 0, "eos_token_id": 0},
    },
    "llama": DECODER,
    "mistral": {**DECODER, "sliding_window": 4},
    "qwen3": DECODER,
    "gemma2": {**DECODER, "sliding_window": 4},
    "mixtral": {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1},
}


class TestPositions:
    """attention_masks: a batch without a mask is not looked at, and gives the same."""

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            masking_utils, "find_packed_sequence_indices", attention_masks._packed_sequences
        )

    @pytest.mark.parametrize("kind", SMALL)
    def test_of_ordinary_rows_are_not_read(self, kind: str) -> None:
        config = transformers.AutoConfig.for_model(kind, **SMALL[kind])
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        # A token that may be taken for padding or for the end of a document changes nothing.
        batch = {"input_ids": torch.randint(3, 50, (2, 9)).index_fill(1, torch.tensor([4]), 0)}
        with torch.no_grad():
            expected = model(**batch, use_cache=False).logits
        with HostReads().forbidden(), pytest.raises(HostReadError):
            model(**batch, use_cache=False)
        attention_masks.read_batch(batch)
        with HostReads().forbidden(), torch.no_grad():
            found = model(**batch, use_cache=False).logits
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("seen", ["positions", "padding"])
    def test_of_rows_that_several_share_are_read(self, seen: str) -> None:
        ids = torch.arange(6)[None]
        batches = {
            "positions": {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])},
            "padding": {"input_ids": ids, "attention_mask": (ids < 3).long()},
        }
        attention_masks.read_batch(batches[seen])
        positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
        found = masking_utils.find_packed_sequence_indices(positions)
        assert found is not None
        assert torch.equal(found, torch.tensor([[0, 0, 0, 1, 1, 1]]))

    def test_a_whole_rectangle_goes_in_without_its_mask(self) -> None:
        """As `worker.training.kernels.padding_free` hands it on."""
        ids = torch.arange(6)[None]
        attention_masks.read_batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        with HostReads().forbidden():
            assert masking_utils.find_packed_sequence_indices(ids) is None


@pytest.mark.parametrize(
    "read",
    [
        lambda values: values[0].item(),
        lambda values: float(values[0]),
        lambda values: bool(values.all()),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: torch.where(values > 0),
        lambda values: values.tolist(),
        lambda values: values.numpy(),
        lambda values: values.masked_select(values > 0),
        lambda values: values.index_put((values > 0,), values.new_zeros(())),
    ],
)
def test_what_is_found(read: Callable[[torch.Tensor], Any]) -> None:
    values = torch.arange(3.0)
    with HostReads().forbidden(), pytest.raises(HostReadError):
        read(values)


def test_what_is_let_be() -> None:
    values = torch.arange(3.0)
    with HostReads().forbidden():
        _ = values[1:], values[None], values[torch.tensor([2, 0])]
        values.where(values > 0, 0).masked_fill(values > 1, 0).sum()

"""Compares batches without padding with transformers' own forward, for models with windows.

    python -m benchmarks.attention_windows [MODEL_TYPE …]

prints the table of docs/attention-windows.md. Each model type that a task accepts and whose
configuration has a window, chunk, stride, block or router becomes a tiny model (2 layers, 64 wide,
windows of 16; float32, on a CPU). Its loss and gradients for a batch of rows of 5 to 200 tokens,
as a job computes them by itself and with `padding_free: false`, are compared with the sums over the
model's own forward of each row alone.
"""

import contextlib
import copy
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers
from torch.nn import functional
from transformers import CONFIG_MAPPING

from service.contract.spec.spec import JobSpec
from tests.support import every_model
from worker.training import build
from worker.training.distributed.ranks import Ranks
from worker.training.fast_paths import FastPaths
from worker.training.kernels import (
    cpu_attention,
    equivalence_probe,
    gpu_padding_free,
    padding_free,
    selective_head,
)
from worker.training.kernels.equivalence_check import EquivalenceChecker
from worker.training.loss import chunked_cross_entropy

TOLERANCE: Final = 1e-4
"""Of the loss of a token, absolute, and of the gradients, relative: rounding gives 1e-5 at most."""
LENGTHS: Final = (5, 37, 200, 96)
PACKED: Final = "packed"
_END: Final = 2
_IGNORED: Final = chunked_cross_entropy.IGNORED
REASONS: Final = {
    "mask": "depends on more than causality and padding",
    "argument": "does not know",
    "scores": "cannot be computed over packed sequences",
    "error": "",
    "mixes": "",
    "no positions": "",
}
"""Why batches stay padded, and the words of the error, if there is one."""
_CPU: Final = torch.device("cpu")
_MOST_WEIGHTS: Final = 12_000_000
_FIELD: Final = re.compile(
    "(?!.*(norm_|feed_forward|expert|position_bias|num_buckets|max_window|block_type"
    "|layer|router_bias|router_dtype))"
    ".*(window|chunk|stride|block|router|local_|n_floor|floor_scale|index_topk|compress)"
)
_OTHER_INPUTS: Final = ("vision", "audio", "video", "image", "vq", "acoustic", "speech", "backbone")
"""How the names of parts begin that the tasks give no input to."""
_LEFT_OUT: Final = (
    *("gemma4_assistant", "gemma4_unified_assistant", "granite_speech", "granite_speech_plus"),
    *("kimi_linear", "perceiver", "reformer", "seamless_m4t", "seamless_m4t_v2"),
)
"""Models of sounds and others that need more than tokens; Reformer draws its hashes at random; Kimi
Linear took 6 GB for these rows."""

_WIDTHS: Final = (
    (64, "hidden_size d_model n_embd dim embedding_size model_dim hidden_size_global"),
    (
        128,
        "intermediate_size d_ff ffn_dim n_inner hidden_dim encoder_ffn_dim decoder_ffn_dim "
        "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab "
        "shared_expert_intermediate_size",
    ),
    (
        16,
        "d_kv head_dim q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
        "hidden_size_per_layer_input linear_key_head_dim linear_value_head_dim global_head_dim "
        "swa_head_dim swa_v_head_dim",
    ),
    (32, "moe_intermediate_size"),
    (8, "laurel_rank"),
    (512, "max_position_embeddings n_positions"),
)
_COUNTS: Final = (
    (
        2,
        "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers n_group "
        "num_decoder_layers num_encoder_layers num_experts_per_tok moe_topk moe_top_k num_blocks",
    ),
    (
        4,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads num_key_value_heads "
        "decoder_attention_heads num_local_experts num_experts n_routed_experts "
        "swa_num_attention_heads swa_num_key_value_heads num_global_key_value_heads "
        "linear_num_key_heads linear_num_value_heads",
    ),
    (1, "topk_group first_k_dense_replace bos_token_id"),
    (_END, "eos_token_id"),
    (0, "pad_token_id num_kv_shared_layers"),
)
_WINDOWS: Final = (
    (
        16,
        "sliding_window sliding_window_size attention_chunk_size attention_window chunk_size "
        "block_size attention_window_size window_size local_attention local_attention_window_len "
        "floor_scale local_attn_chunk_length lsh_attn_chunk_length keep_window_size local_radius "
        "log_scaling_n_floor mamba_chunk_size local_transformer_stride index_block_size",
    ),
    (8, "index_topk"),
    (2, "sliding_window_pattern _sliding_window_pattern"),
    (1, "max_window_layers"),
    (True, "use_sliding_window"),
)
_TINY: Final[Mapping[str, Any]] = {
    name: value
    for group in (_WIDTHS, _COUNTS, _WINDOWS)
    for value, names in group
    for name in names.split()
}
_BOTH: Final = ["sliding_attention", "full_attention"]
_LINEAR: Final = ["linear_attention", "full_attention"]
_OF_TYPE: Final[Mapping[str, dict[str, Any]]] = {
    "cohere_compass_text": {"layer_types": _BOTH},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "dots1": {"n_shared_experts": 1},
    "laguna": {"layer_types": _BOTH},
    "mamba2": {"num_heads": 8},
    "mimo_v2_flash": {"num_attention_heads": 8},
    "qwen3_5_moe_text": {"layer_types": _LINEAR},
    "qwen3_next": {"layer_types": _LINEAR},
    "zaya": {"num_experts_per_tok": 1},
    "llama4_text": {"no_rope_layers": [1, 0], "moe_layers": []},
}
"""What a type needs beyond `_TINY`."""


class _Task(NamedTuple):
    auto: Any
    model_types: Mapping[str, str]


_KINDS: Final = every_model.MAPPINGS
TASKS: Final = {
    "causal": _Task(transformers.AutoModelForCausalLM, _KINDS["causal-lm"]),
    "masked": _Task(transformers.AutoModelForMaskedLM, _KINDS["masked-lm"]),
    "sequence": _Task(
        transformers.AutoModelForSequenceClassification, _KINDS["text-classification"]
    ),
    "token": _Task(transformers.AutoModelForTokenClassification, _KINDS["token-classification"]),
    "qa": _Task(transformers.AutoModelForQuestionAnswering, _KINDS["question-answering"]),
    "seq2seq": _Task(transformers.AutoModelForSeq2SeqLM, _KINDS["seq2seq"]),
}


class Difference(NamedTuple):
    """From the model's own forward, row by row."""

    loss: float
    """Of a token, absolute."""
    gradients: float
    """The norm of their difference, relative to their norm."""

    def is_rounding(self) -> bool:
        return max(self) <= TOLERANCE  # False for NaN


@dataclass(frozen=True)
class ModelComparison:
    """One model type in one task."""

    model_type: str
    task: str
    path: str
    """`PACKED`, or why batches stay padded."""
    chosen: Difference
    plain: Difference

    @property
    def right(self) -> bool:
        """Some models' own forward depends on the padding: ours is then no further from it."""
        return self.chosen.is_rounding() or self.chosen[1] <= 1.01 * self.plain[1]


def model_types() -> list[str]:
    """Those with a setting that matches `_FIELD`."""
    every = sorted({name for task in TASKS.values() for name in task.model_types})
    return [name for name in every if any(_settings(name))]


def _settings(model_type: str) -> Iterator[str]:
    kind = CONFIG_MAPPING[model_type]
    if model_type in _LEFT_OUT or any(part.startswith(_OTHER_INPUTS) for part in kind.sub_configs):
        return  # its text model is a type of its own
    try:
        settings = kind().to_dict()
    except Exception:  # a part of another model, which has no configuration by itself
        return
    for part in (settings, *_parts(settings).values()):
        yield from filter(_FIELD.match, part)


def tiny_config(model_type: str, **settings: Any) -> Any:
    kind = CONFIG_MAPPING[model_type]
    given = _shrunk(kind().to_dict())
    given |= {own: _TINY[name] for name, own in kind.attribute_map.items() if name in _TINY}
    return kind(**{**given, **_OF_TYPE.get(model_type, {}), **settings})


def _shrunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    small = {name: _TINY[name] for name in settings if name in _TINY}
    return small | {name: _shrunk(part) for name, part in _parts(settings).items()}


def _parts(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {n: v for n, v in settings.items() if isinstance(v, dict) and "model_type" in v}


def compare(model_type: str, task: str, **settings: Any) -> ModelComparison:
    """`settings` are for the configuration. Raises whatever transformers raises where the model
    cannot be made or computed."""
    model = tiny_model(task, tiny_config(model_type, **settings))
    copies = {asked: copy.deepcopy(model) for asked in (False, None)}  # some keep states
    batch = _batch()
    expected = _sum_of(_results(model, _row(batch, row), task) for row in range(len(LENGTHS)))
    given = gpu_padding_free.ChoiceInputs(
        (), FastPaths(), EquivalenceChecker(Path(tempfile.gettempdir()), _CPU, Ranks(), print)
    )
    found = {}
    for asked, chosen in copies.items():
        spec = _spec(asked)
        packed = build.choose_attention(chosen, spec, _CPU, given)
        build.install_fast_modules(chosen, spec, _CPU)
        found[asked] = _difference(_results(chosen, batch, task), expected)
    path = PACKED if packed else _why_padded(model)
    return ModelComparison(model_type, task, path, found[None], found[False])


def tiny_model(task: str, config: Any) -> Any:
    auto = TASKS[task].auto
    with torch.device("meta"):
        weights = sum(each.numel() for each in auto.from_config(copy.deepcopy(config)).parameters())
    if weights > _MOST_WEIGHTS:
        raise RuntimeError(f"the tiny model has {weights:,} weights")
    torch.manual_seed(0)
    model = auto.from_config(config)
    equivalence_probe.sharpen(model)
    return model.eval()


def _spec(padding_free: bool | None) -> JobSpec:
    return JobSpec.model_validate(
        {
            "task": "causal-lm",
            "model": {"name_or_path": "/models/tiny"},
            "dataset": {"source": "path", "train": "/data/train.json"},
            "training": {"precision": "fp32", "padding_free": padding_free},
        }
    )


def _batch() -> dict[str, torch.Tensor]:
    """Rows of `LENGTHS`, padded on the right, each with one end token: some classifiers read the
    states there."""
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS)[:, None]
    places = torch.arange(max(LENGTHS))
    mask = (places < lengths).long()
    ids = torch.randint(_END + 1, 120, mask.shape)
    ids[places.expand_as(mask) == lengths - 1] = _END
    return {"input_ids": ids * mask, "attention_mask": mask}


def _row(batch: Mapping[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    return {name: value[row : row + 1, : LENGTHS[row]] for name, value in batch.items()}


class _Results(NamedTuple):
    loss: float
    gradients: dict[str, torch.Tensor]


def _results(model: Any, batch: dict[str, torch.Tensor], task: str) -> _Results:
    """The loss summed over the batch's tokens, divided by all there are, and its gradients."""
    model.zero_grad()
    loss = _loss_sum(model, batch, task) / sum(LENGTHS)
    loss.backward()
    weights = model.named_parameters()
    return _Results(
        float(loss.detach()), {n: w.grad.clone() for n, w in weights if w.grad is not None}
    )


def _loss_sum(model: Any, batch: dict[str, torch.Tensor], task: str) -> torch.Tensor:
    ids, real = batch["input_ids"], batch["attention_mask"].bool()
    if task == "causal":
        return _causal_loss_sum(model, batch)
    extra = {"decoder_input_ids": ids} if task == "seq2seq" else {}
    output = model(**batch, **extra)
    if task == "qa":
        both = torch.stack((output.start_logits, output.end_logits)).masked_fill(~real, -1e9)
        return -both.log_softmax(-1)[..., 1].sum()
    logits: torch.Tensor = output.logits
    if task == "sequence":
        return -logits.log_softmax(-1)[:, 1].sum()
    logits = logits[real]
    return functional.cross_entropy(logits, ids[real] % logits.shape[-1], reduction="sum")


def _causal_loss_sum(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As jobs compute it: by chunks of the logits, where the head allows that."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    labels = functional.pad(ids.masked_fill(mask == 0, _IGNORED)[:, 1:], (0, 1), value=_IGNORED)
    linear = chunked_cross_entropy.plain_head(model)
    if linear is None:
        logits = model(**batch, use_cache=False).logits.transpose(1, 2)
        return functional.cross_entropy(logits, labels, reduction="sum")
    head = chunked_cross_entropy.head_input(model, lambda: model(**batch, use_cache=False))
    places = selective_head.positions_of(labels != _IGNORED)
    states = selective_head.states_at(head.states, places, mask)[None]
    head = head._replace(states=states)
    return chunked_cross_entropy.loss_sum(linear, head, labels.flatten()[places])


def _sum_of(rows: Iterable[_Results]) -> _Results:
    loss, gradients = 0.0, dict[str, torch.Tensor]()
    for row in rows:
        loss += row.loss
        for name, value in row.gradients.items():
            gradients[name] = gradients[name] + value if name in gradients else value
    return _Results(loss, gradients)


def _difference(found: _Results, expected: _Results) -> Difference:
    def norm(values: Iterable[torch.Tensor]) -> float:
        return float(torch.stack([value.norm() for value in values]).norm())

    nothing = torch.zeros(())
    apart = [found.gradients.get(n, nothing) - v for n, v in expected.gradients.items()]
    relative = norm(apart) / norm(expected.gradients.values())
    return Difference(abs(found.loss - expected.loss), relative)


def _why_padded(model: Any) -> str:
    """One of `REASONS`, by the error that refused the packed rows."""
    small = model
    with contextlib.suppress(*equivalence_probe.PROBE_ERRORS):
        small = equivalence_probe.small_model(model, _CPU)
    cpu_attention.register()
    small.set_attn_implementation(cpu_attention.NAME)
    why = "no positions"
    for place in padding_free.hook_places(small):
        hooks = padding_free.PaddingFreeHooks(small, place)
        try:
            with equivalence_probe.probing(small):
                small(**equivalence_probe.small_batch(small))
            return "mixes"
        except equivalence_probe.PROBE_ERRORS as error:
            found = (reason for reason, words in REASONS.items() if words and words in str(error))
            why = next(found, "error")
        finally:
            hooks.remove()
    return why


def rows(names: Iterable[str]) -> Iterator[ModelComparison | tuple[str, str]]:
    """What was compared, or the type and why it cannot be made or computed."""
    for name in names:
        for task in TASKS:
            if name in TASKS[task].model_types:
                try:
                    yield compare(name, task)
                except Exception as error:
                    yield f"{name} ({task})", str(error).strip().splitlines()[-1]


def table_row(compared: Sequence[ModelComparison]) -> str:
    """Of one type and path, with the largest differences of its tasks."""
    tasks = ", ".join(each.task for each in compared)
    largest = [
        f"{max(one.loss for one in column):.0e} | {max(one.gradients for one in column):.0e}"
        for column in ([each.chosen for each in compared], [each.plain for each in compared])
    ]
    return f"| {compared[0].model_type} | {tasks} | {compared[0].path} | {' | '.join(largest)} |"


def main() -> None:
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    print("| model type | tasks | path | loss | gradients | loss, `false` | gradients, `false` |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or model_types():
        found = list(rows([name]))
        compared = [row for row in found if isinstance(row, ModelComparison)]
        for path in dict.fromkeys(row.path for row in compared):
            print(table_row([row for row in compared if row.path == path]), flush=True)
        for row in found:
            if not isinstance(row, ModelComparison):
                print(": ".join(row), file=sys.stderr)


if __name__ == "__main__":
    main()

"""A tiny model of each type of transformers, for sweeps over all of them."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
import transformers
from transformers.models.auto import modeling_auto

MAPPINGS: Final = {
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "text-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question-answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}
"""Kind of head → type of model → name of its class."""

VOCABULARY: Final = 96
_MOST_WEIGHTS: Final = 40_000_000

_SIZES: Final[dict[int, tuple[str, ...]]] = {
    32: (
        *("hidden_size", "n_embd", "d_model", "dim", "model_dim", "embedding_size", "emb_dim"),
        *("word_embed_proj_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"),
        *("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "dim_ff", "d_inner"),
    ),
    16: (
        *("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"),
        *("shared_intermediate_size", "kv_lora_rank", "q_lora_rank"),
    ),
    8: (
        *("head_dim", "d_kv", "kv_channels", "qk_rope_head_dim", "qk_nope_head_dim"),
        *(
            "v_head_dim",
            "mamba_n_heads",
            "mamba_d_head",
            "linear_key_head_dim",
            "linear_value_head_dim",
        ),
        *("index_head_dim",),
    ),
    4: (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
        *("decoder_attention_heads", "num_encoder_attention_heads", "rotary_dim"),
        *("num_decoder_attention_heads", "num_local_experts", "num_experts", "n_routed_experts"),
        *("moe_num_experts", "linear_num_key_heads", "linear_num_value_heads", "index_n_heads"),
    ),
    2: (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
        *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_key_value_heads"),
        *("num_kv_heads", "num_experts_per_tok", "moe_top_k", "moe_k", "top_k_experts"),
        *("encoder_sparse_step", "decoder_sparse_step"),
    ),
    1: ("num_sparse_encoder_layers", "num_sparse_decoder_layers", "n_group", "topk_group"),
    VOCABULARY: ("vocab_size",),
    256: (
        *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
        *("max_target_positions", "max_source_positions"),
    ),
}
_SIZE_OF: Final = {name: size for size, names in _SIZES.items() for name in names}
_IDS: Final = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "mask_token_id": 3,
    "cls_token_id": 3,
    "sep_token_id": 3,
    "unk_token_id": 3,
}
_OWN: Final[dict[str, dict[str, Any]]] = {
    "bamba": {"mamba_d_head": 8, "attn_layer_indices": [1]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "granitemoehybrid": {"mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8},
}
"""Fields whose defaults do not fit the other sizes."""


def models(kind: str, model_type: str, **options: Any) -> Iterator[Any]:
    """Models of this type with random weights that are always the same, in evaluation mode: with
    different guesses about which sizes fit together. `options`: fields of the configuration, of
    those that it has."""
    name = MAPPINGS[kind][model_type]
    model_class = getattr(transformers, name if isinstance(name, str) else name[0])
    for config in _configs(model_type, options):
        if kind == "causal-lm" and hasattr(config, "is_decoder") and not config.is_encoder_decoder:
            config.is_decoder = True
        try:
            with torch.device("meta"):
                weights = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
            if weights > _MOST_WEIGHTS:
                continue
            transformers.set_seed(0)
            yield model_class(config).eval()
        except Exception:
            continue


def _configs(model_type: str, options: Mapping[str, Any]) -> Iterator[Any]:
    config_class = transformers.CONFIG_MAPPING[model_type]
    try:
        fields = config_class().to_dict()
    except Exception:  # its defaults do not fit together
        return
    sizes = {**_smaller(fields, options), **_OWN.get(model_type, {})}
    for changes in (
        {},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 4, "head_dim": None},
        {"layer_types": None, "num_hidden_layers": 4},
        {"layer_types": None, "num_hidden_layers": 8, "num_key_value_heads": 4},
    ):
        given = {**sizes, **{name: v for name, v in changes.items() if name in fields}}
        try:
            yield config_class(**{name: v for name, v in given.items() if v is not None})
        except Exception:
            continue


def _smaller(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        size = _SIZE_OF.get(name)
        if size is not None and isinstance(value, int) and value > size:
            found[name] = size
        elif name in _IDS:
            found[name] = _IDS[name]
        elif name.endswith("_config") and isinstance(value, dict):
            found[name] = {**value, **_smaller(value, options)}
    layers = fields.get("num_hidden_layers")
    lists = {n: v for n, v in fields.items() if isinstance(v, list) and v and len(v) == layers}
    if lists:
        kinds = list(zip(*map(map, [str] * len(lists), lists.values()), strict=True))
        places = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        places = places if len(places) > 1 else places * 2
        found |= {name: [value[place] for place in places] for name, value in lists.items()}
        found["num_hidden_layers"] = len(places)
    return {**found, **{name: value for name, value in options.items() if name in fields}}


def batch(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Random tokens that are not special ones, padded on the right with 0."""
    generator = torch.Generator().manual_seed(0)
    shape = len(lengths), max(lengths)
    ids = torch.randint(10, VOCABULARY - 6, shape, generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}

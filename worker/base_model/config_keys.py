"""Keys of a model's JSON files that name code, kernels or other files: they are dropped."""

from collections.abc import Mapping
from typing import Any, Final

from worker.base_model.json_files import broken

_LOADS_CODE: Final = frozenset(
    {
        *("auto_map", "custom_pipelines", "trust_remote_code", "custom_generate"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("_attn_implementation_autoset", "experts_implementation", "_experts_implementation"),
        *("_experts_implementation_internal", "use_kernels", "kernel_config"),
        *("transformers_weights", "adapter_name_or_path"),
    }
)
_SILENT: Final = frozenset(
    {
        # Where the model was loaded when it was saved; written by libraries.
        *("name_or_path", "_name_or_path", "_commit_hash", "_attn_implementation_autoset"),
        *("special_tokens_map_file", "tokenizer_file"),
    }
)
"""Dropped without a notice: they are common, and nothing is missing without them."""
_OWN_ATTENTION: Final = frozenset({"eager", "sdpa", None})
"""Implementations that are part of transformers: dropped without a notice."""
_QUANTIZED: Final = frozenset({"bitsandbytes"})


def cleaned(content: Mapping[str, Any], file: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """`content` without such keys, and the paths of those that the user should know about.

    StageError(invalid_model) for quantized weights of a kind that is not trained here.
    """
    _check_quantization(content, file, name)
    dropped: list[str] = []
    return _without(content, "", dropped, is_tokenizer=file == "tokenizer_config.json"), dropped


def _without(
    value: Mapping[str, Any], path: str, dropped: list[str], *, is_tokenizer: bool
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, each in value.items():
        inner = f"{path}.{key}" if path else key
        # A tokenizer opens the files that its settings name, wherever they are.
        names_file = is_tokenizer and key.endswith("_file")
        if key in _LOADS_CODE or key in _SILENT or names_file:
            if key not in _SILENT and not _is_own_attention(key, each):
                dropped.append(inner[:80])
        elif isinstance(each, dict):
            kept[key] = _without(each, inner, dropped, is_tokenizer=is_tokenizer)
        else:
            kept[key] = each
    return kept


def _is_own_attention(key: str, value: Any) -> bool:
    return (
        "attn_implementation" in key and isinstance(value, str | None) and value in _OWN_ATTENTION
    )


def _check_quantization(content: Mapping[str, Any], file: str, name: str) -> None:
    given = content.get("quantization_config")
    if given is None:
        return
    method = given.get("quant_method") if isinstance(given, dict) else None
    is_old_form = isinstance(given, dict) and method is None
    if is_old_form and (given.get("load_in_4bit") or given.get("load_in_8bit")):
        return
    if not isinstance(method, str) or method not in _QUANTIZED:
        shown = f"of the kind {method[:40]!r}" if isinstance(method, str) else "of an unknown kind"
        raise broken(
            name,
            file,
            f"says that the weights are quantized, {shown}: such weights are not trained here. "
            "Give the model that they were made from",
            field="quantization_config",
        )

"""Models that no user would train: broken, contradictory, or made to fill a machine.

Each is made at test time from the tiny BERT, by a function that changes its folder.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from service.contract.failures import FailureCode

Change = Callable[[Path], None]
_MIB: Final = 1024**2

BAD: Final = FailureCode.INVALID_MODEL
LARGE: Final = FailureCode.MODEL_TOO_LARGE
UNSUPPORTED: Final = FailureCode.UNSUPPORTED_ARCHITECTURE
TOKENIZER: Final = FailureCode.SLOW_TOKENIZER
NOT_FOUND: Final = FailureCode.MODEL_NOT_FOUND


@dataclass(frozen=True)
class Hostile:
    name: str
    change: Change
    code: FailureCode
    says: str
    """A part of the message."""


def config(**fields: Any) -> Change:
    """Other fields in config.json; None removes one."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return change


def file(name: str, content: bytes | str) -> Change:
    def change(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)

    return change


def weights(alter: Callable[[dict[str, torch.Tensor]], None]) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        alter(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return change


def json_file(name: str, alter: Callable[[dict[str, Any]], None]) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        alter(content)
        path.write_text(json.dumps(content))

    return change


def header(
    value: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None
) -> Change:
    """A safetensors file with this header."""

    def change(folder: Path) -> None:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        size = struct.pack("<Q", len(text) if length is None else length)
        (folder / "model.safetensors").write_bytes(size + text + data)

    return change


def without(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def sharded(weight_map: Any, *, keep: str | None = None) -> Change:
    def change(folder: Path) -> None:
        whole = folder / "model.safetensors"
        if keep is not None:
            whole.rename(folder / keep)
        else:
            whole.unlink()
            save_file({"x": torch.zeros(1)}, folder / "model-00001-of-00002.safetensors")
        content = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return change


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _cast(dtype: torch.dtype) -> Change:
    def alter(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(dtype)

    return weights(alter)


def _tokens(content: dict[str, Any]) -> None:
    content["added_tokens"] = [
        {**content["added_tokens"][0], "id": 10**6 + n, "content": f"<{n}>"} for n in range(200_001)
    ]


def _empty_vocabulary(content: dict[str, Any]) -> None:
    content["model"]["vocab"] = {}


def _ids_beyond(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary[next(reversed(vocabulary))] = 10**6


def _growing(content: dict[str, Any]) -> None:
    step = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [step] * 40}


def _long_pattern(content: dict[str, Any]) -> None:
    pattern = {"Regex": "(a+)+" * 10_000}
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = step


def _broken_pattern(content: dict[str, Any]) -> None:
    step = {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = step


def _nested_steps(content: dict[str, Any]) -> None:
    step: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(100):
        step = {"type": "Sequence", "normalizers": [step]}
    content["normalizer"] = step


def _no_model(content: dict[str, Any]) -> None:
    del content["model"]


def _wrong_template(content: dict[str, Any]) -> None:
    content["chat_template"] = 5


def _wrong_token(content: dict[str, Any]) -> None:
    content["pad_token"] = ["a", {"b": 1}]


def _endless_length(content: dict[str, Any]) -> None:
    content["model_max_length"] = "long"


def _overlap() -> Change:
    one = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    return header({"a": one, "b": one}, b"\0" * 16)


_DEEP: Final = '{"a":' * 20_000 + "1" + "}" * 20_000
_TENSOR: Final = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}

CONFIGS: Final = (
    Hostile("positions", config(max_position_embeddings=10**12), BAD, "`max_position_embeddings`"),
    Hostile("layers", config(num_hidden_layers=10**9), BAD, "at most 1,024 is accepted"),
    Hostile("many_layers", config(num_hidden_layers=1025), BAD, "`num_hidden_layers`: 1,025"),
    Hostile("hidden", config(hidden_size=10**15), BAD, "`hidden_size`"),
    Hostile("wide", config(hidden_size=2**20, intermediate_size=2**24), LARGE, "parameters"),
    Hostile("vocabulary", config(vocab_size=10**10), BAD, "`vocab_size`"),
    Hostile("large_vocabulary", config(vocab_size=2**26, hidden_size=2**16), LARGE, "GiB"),
    Hostile("labels", config(num_labels=10**9, id2label=None), BAD, "`num_labels`"),
    Hostile("digits", config(vocab_size=10**30), BAD, "a number with 31 digits"),
    Hostile("negative_hidden", config(hidden_size=-32), BAD, "Creating a model"),
    Hostile("negative_layers", config(num_hidden_layers=-2), BAD, "less than 0"),
    Hostile("no_heads", config(num_attention_heads=0), BAD, "config.json"),
    Hostile("odd_heads", config(num_attention_heads=5), BAD, "not a multiple"),
    Hostile("text_for_a_number", config(hidden_size="wide"), BAD, "config.json"),
    Hostile("list_for_a_number", config(vocab_size=[1, 2]), BAD, "config.json"),
    Hostile("half_a_layer", config(num_hidden_layers=1.5), BAD, "config.json"),
    Hostile("no_vocabulary", config(vocab_size=0), BAD, "config.json"),
    Hostile("pad_id", config(pad_token_id=10**6), BAD, "config.json"),
    Hostile("activation", config(hidden_act="no_such"), BAD, "no_such"),
    Hostile("activation_kind", config(hidden_act={"a": 1}), BAD, "config.json"),
    Hostile("dropout", config(hidden_dropout_prob=7.0), BAD, "config.json"),
    Hostile("epsilon", config(layer_norm_eps="tiny"), BAD, "config.json"),
    Hostile("dtype", config(dtype="no_such"), BAD, "config.json"),
    Hostile("dtype_kind", config(dtype=[1]), BAD, "config.json"),
    Hostile("label_keys", config(id2label={"one": "a"}), BAD, "keys must be numbers"),
    Hostile("label_list", config(id2label=["a", "b"]), BAD, "as list"),
    Hostile("label_values", config(id2label={"0": {"a": 1}}), BAD, "keys must be numbers"),
    Hostile("label_ids", config(label2id={"a": "b"}), BAD, "`label2id`"),
    Hostile(
        "many_labels",
        config(id2label={str(n): "x" for n in range(100_001)}),
        BAD,
        "100,001 entries in `id2label`",
    ),
    Hostile("no_type", config(model_type=None, architectures=None), UNSUPPORTED, "config.json"),
    Hostile("type", config(model_type="no_such"), UNSUPPORTED, "config.json"),
    Hostile("type_kind", config(model_type=["bert"]), UNSUPPORTED, "config.json"),
    Hostile("other_task", config(model_type="vit"), UNSUPPORTED, "no head"),
    Hostile("quantized", config(quantization_config={"quant_method": "gptq"}), BAD, "'gptq'"),
    Hostile("quantized_kind", config(quantization_config="x"), BAD, "unknown kind"),
    Hostile("long_list", config(layer_types=["a"] * 100_001), BAD, "`layer_types`"),
    Hostile("list", file("config.json", "[1]"), BAD, "must hold a JSON object, not list"),
    Hostile("empty", file("config.json", ""), BAD, "is not valid JSON"),
    Hostile("null", file("config.json", "null"), BAD, "not NoneType"),
    Hostile("deep", file("config.json", _DEEP), BAD, "nested"),
    Hostile("nested", config(a=json.loads("[" * 50 + "]" * 50)), BAD, "32 levels deep"),
    Hostile("mark", file("config.json", b"\xef\xbb\xbf{}"), BAD, "is not valid JSON"),
    Hostile("bytes", file("config.json", b'{"a": "\xff"}'), BAD, "is not UTF-8 (byte 8)"),
    Hostile("digits_of_json", file("config.json", '{"a": 1' + "0" * 5000 + "}"), BAD, "digits"),
    Hostile("blank", file("config.json", b" " * (8 * _MIB + 1)), BAD, "8,388,609 bytes"),
    Hostile("none", without("config.json"), NOT_FOUND, "config.json"),
)
WEIGHTS: Final = (
    Hostile("cut", truncate, BAD, "model.safetensors"),
    Hostile("empty", file("model.safetensors", b""), BAD, "it has 0 bytes"),
    Hostile("text", file("model.safetensors", "hello, this is text"), BAD, "header of"),
    Hostile("header", header(b"{}", length=2**62), BAD, "header of 4,611,686,018,427,387,904"),
    Hostile("no_json", header(b"\xff" * 100), BAD, "safetensors"),
    Hostile("offsets", header({"a": {**_TENSOR, "data_offsets": [0, 10**15]}}), BAD, "cut off"),
    Hostile("backwards", header({"a": {**_TENSOR, "data_offsets": [16, 0]}}), BAD, "safetensors"),
    Hostile("shape", header({"a": {**_TENSOR, "shape": [2**40, 2**40]}}, b"\0" * 16), BAD, ""),
    Hostile("negative", header({"a": {**_TENSOR, "shape": [-4]}}, b"\0" * 16), BAD, ""),
    Hostile("overlap", _overlap(), BAD, "safetensors"),
    Hostile("kind", header({"a": {**_TENSOR, "dtype": "X9"}}, b"\0" * 16), BAD, "safetensors"),
    Hostile("integers", _cast(torch.int32), BAD, "in I32"),
    Hostile("float8", _cast(torch.float8_e4m3fn), BAD, "in F8_E4M3"),
    Hostile("outside", sharded({"a": "../../secret.safetensors"}), BAD, "../../secret"),
    Hostile("absolute", sharded({"a": "/etc/passwd"}), BAD, "/etc/passwd"),
    Hostile("map", sharded([1, 2]), BAD, "has no `weight_map`"),
    Hostile(
        "missing_shard", sharded({"a": "model-00002-of-00002.safetensors"}), BAD, "are missing"
    ),
)
TOKENIZERS: Final = (
    Hostile("none", without("tokenizer.json", "tokenizer_config.json"), TOKENIZER, "tokenizer"),
    Hostile("json", file("tokenizer.json", "{"), BAD, "tokenizer.json"),
    Hostile("list", file("tokenizer.json", "[]"), BAD, "must hold a JSON object"),
    Hostile("no_model", json_file("tokenizer.json", _no_model), TOKENIZER, "not possible"),
    Hostile("empty", json_file("tokenizer.json", _empty_vocabulary), BAD, "cannot tokenize"),
    Hostile("ids", json_file("tokenizer.json", _ids_beyond), FailureCode.INVALID_OPTION, "1000000"),
    Hostile("added", json_file("tokenizer.json", _tokens), BAD, "adds 200,001 tokens"),
    Hostile("growth", json_file("tokenizer.json", _growing), BAD, "a thousand times as long"),
    Hostile("pattern", json_file("tokenizer.json", _long_pattern), BAD, "50,000 characters"),
    Hostile("regex", json_file("tokenizer.json", _broken_pattern), TOKENIZER, "not possible"),
    Hostile("steps", json_file("tokenizer.json", _nested_steps), BAD, "levels deep"),
    Hostile(
        "large", file("tokenizer.json", b'{"a": "' + b"x" * (64 * _MIB) + b'"}'), BAD, "64 MiB"
    ),
    Hostile("settings", file("tokenizer_config.json", "[]"), BAD, "must hold a JSON object"),
    Hostile("template", json_file("tokenizer_config.json", _wrong_template), BAD, "be a text"),
    Hostile("token", json_file("tokenizer_config.json", _wrong_token), TOKENIZER, "not possible"),
    Hostile("length", json_file("tokenizer_config.json", _endless_length), BAD, "not possible"),
    Hostile("class", file("tokenizer_config.json", '{"tokenizer_class": 5}'), TOKENIZER, ""),
)


def _rename(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"strange.{name}"] = tensors.pop(name)


def _fill(value: float) -> Change:
    def alter(tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            tensor.fill_(value)

    return weights(alter)


def _reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["encoder.layer.0.output.dense.weight"] = torch.zeros(7, 7)


def _scalars(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        tensors[name] = torch.zeros(())


TRAINED: Final = (
    Hostile("nan", _fill(float("nan")), FailureCode.NON_FINITE_LOSS, "loss"),
    Hostile("infinite", _fill(float("inf")), FailureCode.NON_FINITE_LOSS, "loss"),
    Hostile("shapes", weights(_reshape), UNSUPPORTED, "differ in size"),
    Hostile("scalars", weights(_scalars), UNSUPPORTED, "differ in size"),
    Hostile("other_names", weights(_rename), BAD, "none of the weights"),
    Hostile("no_tensors", header({}), BAD, "none of the weights"),
    Hostile("wider", config(hidden_size=64), UNSUPPORTED, "differ in size"),
    Hostile("type_vocabulary", config(type_vocab_size=1), UNSUPPORTED, "differ in size"),
    Hostile("generation", file("generation_config.json", "[1]"), BAD, "JSON object"),
)

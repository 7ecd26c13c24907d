"""worker.training.loss.chunked_cross_entropy against torch's own, with all gradients."""

from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from worker.training.fast_paths import FastPaths
from worker.training.loss import chunked_cross_entropy

GPT2 = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def reference(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing, reduction="sum"
    )


def assert_near(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * float(other.abs().max()))


@pytest.mark.parametrize("numbers", [1, 7 * 50, 1 << 24])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_is_torchs(
    monkeypatch: pytest.MonkeyPatch, numbers: int, smoothing: float, bias: bool
) -> None:
    """In pieces of one token, of seven with a rest, and all at once."""
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_NUMBERS", numbers)
    torch.manual_seed(0)
    linear = torch.nn.Linear(16, 50, bias=bias)
    states = torch.randn(3, 11, 16, requires_grad=True)
    labels = torch.randint(50, (3, 11))
    labels[0, :4] = labels[2] = chunked_cross_entropy.IGNORED
    inputs = [states, *linear.parameters()]
    expected = reference(linear(states), labels, smoothing)
    head = chunked_cross_entropy.HeadInput(states, torch.float32)
    found = chunked_cross_entropy.loss_sum(linear, head, labels, smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert_near(
        list(torch.autograd.grad(found * 0.25, inputs)),
        list(torch.autograd.grad(expected * 0.25, inputs)),
    )


class TestRowsOnAGPU:
    """As many as its memory and its products like; the numbers are the same."""

    GIB = 1 << 30

    @pytest.mark.parametrize(
        ("vocabulary", "free", "rows"),
        [
            (32_000, 79, 4096),
            (128_256, 79, 1024),
            (256_000, 79, 512),
            (128_256, 23, 512),  # of 23 GiB a part has 736 MiB
            (32_000, 15, 1024),
            (128_256, 15, 256),
            (256_000, 7, 64),
            (256_000, 0.1, 64),
            (50_257, 31.99, 2048),
            (400, 79, 262_144),
        ],
    )
    def test_are_a_share_of_the_memory(self, vocabulary: int, free: float, rows: int) -> None:
        found = chunked_cross_entropy.chunk_rows_for(vocabulary, int(free * self.GIB))
        assert found == rows
        used = rows * vocabulary * 8
        assert used <= self.GIB
        assert found == 64 or used <= free * self.GIB / 32 < 2.1 * used or used > self.GIB / 2.1

    def test_what_torch_holds_for_later_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device, mib = torch.device("cuda", 0), 1 << 20
        asked = []
        monkeypatch.setattr(
            torch.cuda, "mem_get_info", lambda at: asked.append(at) or (100 * mib, 9000 * mib)
        )
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda at: asked.append(at) or 64 * mib)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda at: asked.append(at) or 36 * mib)
        linear = torch.nn.Linear(2, 1024)
        paths = FastPaths()
        # 128 MiB: a part may have 4 of them, half a million logits.
        assert chunked_cross_entropy.choose_chunk_rows(linear, device, paths) == 512
        assert asked == [device] * 3
        assert paths.chosen == {"rows_of_loss": 512}

    def test_a_resumed_training_keeps_its_own(self) -> None:
        linear, gpu = torch.nn.Linear(2, 50), torch.device("cuda", 0)
        paths = FastPaths(chosen={"rows_of_loss": 320})
        assert chunked_cross_entropy.choose_chunk_rows(linear, gpu, paths) == 320

    def test_a_cpu_chooses_nothing(self) -> None:
        linear, paths = torch.nn.Linear(2, 50), FastPaths()
        assert chunked_cross_entropy.choose_chunk_rows(linear, torch.device("cpu"), paths) is None
        assert paths.chosen == {}
        assert chunked_cross_entropy.Chunks.for_vocabulary(128_256, None) == (57, 4)

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("rows", [1, 8, 33, 64])
    def test_change_nothing_but_rounding(self, rows: int, smoothing: float) -> None:
        torch.manual_seed(0)
        linear = torch.nn.Linear(16, 50)
        states = torch.randn(3, 11, 16, requires_grad=True)
        labels = torch.randint(50, (3, 11))
        labels[0, :4] = chunked_cross_entropy.IGNORED
        inputs = [states, *linear.parameters()]
        head = chunked_cross_entropy.HeadInput(states, torch.float32)
        losses = [
            chunked_cross_entropy.loss_sum(linear, head, labels, smoothing, r) for r in (None, rows)
        ]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
        expected, found = (list(torch.autograd.grad(loss, inputs)) for loss in losses)
        assert_near(found, expected)

    def test_gradients_of_a_bfloat16_head_are_summed_up_in_float32(self) -> None:
        """Many parts; each would be rounded away against the sum of those before."""
        torch.manual_seed(0)
        half = torch.nn.Linear(8, 20, dtype=torch.bfloat16)
        states, labels = torch.randn(1, 4000, 8).bfloat16(), torch.randint(20, (1, 4000))
        whole, parts = (self._by_weight(half, states, labels, rows) for rows in (4000, 8))
        assert (whole - parts).abs().max() < 0.03 * whole.std()

    @staticmethod
    def _by_weight(
        linear: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor, rows: int
    ) -> torch.Tensor:
        head = chunked_cross_entropy.HeadInput(states, linear.weight.dtype)
        loss = chunked_cross_entropy.loss_sum(linear, head, labels, rows=rows)
        return torch.autograd.grad(loss, linear.weight)[0].float()

    def test_make_no_more_logits(self) -> None:
        linear = torch.nn.Linear(2, 50, bias=False).requires_grad_(False)
        states, labels = torch.randn(1, 200, 2, requires_grad=True), torch.randint(50, (1, 200))
        head = chunked_cross_entropy.HeadInput(states, torch.float32)
        with _Largest() as largest:
            chunked_cross_entropy.loss_sum(linear, head, labels, rows=64)
        assert largest.rows == 64
        seen: list[int] = []

        def judge(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.append(len(logits))
            return (labels,)

        chunked_cross_entropy.map_chunks(linear, head, labels, judge, rows=64)
        assert seen == [64, 64, 64, 8]


class _Largest(TorchDispatchMode):
    """Inside, the rows of the largest matrix over the vocabulary that was made."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dim() == 2 and found.shape[1] == 50:
            self.rows = max(self.rows, len(found))
        return found


@pytest.mark.parametrize(("tokens", "rows"), [(3, 3), (7, 7), (20, 20), (200, 28)])
def test_no_more_logits_are_made_than_four_parts_have(
    monkeypatch: pytest.MonkeyPatch, tokens: int, rows: int
) -> None:
    """Of seven tokens each; nor more than there are tokens."""
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_NUMBERS", 7 * 50)
    linear = torch.nn.Linear(2, 50, bias=False).requires_grad_(False)
    states = torch.randn(1, tokens, 2, requires_grad=True)
    labels = torch.randint(50, (1, tokens))
    with _Largest() as largest:
        chunked_cross_entropy.loss_sum(
            linear, chunked_cross_entropy.HeadInput(states, torch.float32), labels
        )
    assert largest.rows == rows


@pytest.mark.parametrize("numbers", [1, 7 * 50, 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_judging_in_parts(
    monkeypatch: pytest.MonkeyPatch, numbers: int, dtype: torch.dtype
) -> None:
    def judge(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(len(logits))
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")
        return losses, logits.argmax(dim=-1) == labels

    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_NUMBERS", numbers)
    torch.manual_seed(0)
    linear, states = torch.nn.Linear(16, 50), torch.randn(3, 11, 16)
    logits = linear.to(dtype)(states.to(dtype)).flatten(0, 1)
    labels = logits.argmax(dim=-1).where(torch.arange(33) % 3 == 0, torch.arange(33))
    labels[5:9] = chunked_cross_entropy.IGNORED
    seen: list[int] = []
    expected = [each.view(3, 11) for each in judge(logits, labels)]
    head = chunked_cross_entropy.HeadInput(states, dtype)
    found = chunked_cross_entropy.map_chunks(linear.float(), head, labels.view(3, 11), judge)
    assert max(seen[1:]) == min(max(1, numbers // 50), 33)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(found[1], expected[1])
    assert found[1].sum() >= 9
    assert not found[0].requires_grad


def test_a_frozen_head_gets_no_gradient() -> None:
    linear = torch.nn.Linear(16, 50, bias=False).requires_grad_(False)
    states = torch.randn(1, 5, 16, requires_grad=True)
    head = chunked_cross_entropy.HeadInput(states, torch.float32)
    chunked_cross_entropy.loss_sum(linear, head, torch.arange(5)[None]).backward()
    assert states.grad is not None
    assert linear.weight.grad is None


def test_a_head_that_was_replaced_is_no_longer_current() -> None:
    model = transformers.GPT2LMHeadModel(GPT2)
    linear = chunked_cross_entropy.plain_head(model)
    assert chunked_cross_entropy.current_head(model, linear) is linear is model.lm_head
    model.lm_head = torch.nn.Linear(GPT2.n_embd, GPT2.vocab_size, bias=False)
    assert chunked_cross_entropy.current_head(model, linear) is None


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_with_tied_embeddings(autocast: bool) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(GPT2).eval()
    linear = chunked_cross_entropy.plain_head(model)
    assert linear is model.lm_head
    assert linear.weight is model.transformer.wte.weight
    ids, labels = torch.randint(50, (2, 9)), torch.randint(50, (2, 9))
    gradients, losses = [], []
    for whole in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if whole:
                logits = model(input_ids=ids).logits
            else:
                with chunked_cross_entropy.CaptureHeadInput(model) as capture:
                    short = model(input_ids=ids).logits
        if whole:
            loss = reference(logits.float(), labels, 0.0)
        else:
            assert short.shape == (2, 1, 50)
            assert capture.head is not None
            loss = chunked_cross_entropy.loss_sum(linear, capture.head, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append([value.grad for value in model.parameters()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    if not autocast:
        assert_near(gradients[1], gradients[0])


@pytest.mark.parametrize(("scaled", "biased"), [(True, 0), (False, 0), (False, 1)])
def test_decoders_with_an_encoder(scaled: bool, biased: float) -> None:
    """T5 scales what its head is given; BART may add to the logits, and then is refused."""
    torch.manual_seed(0)
    if scaled:
        model: Any = transformers.T5ForConditionalGeneration(
            transformers.T5Config(  # type: ignore[call-arg]
                vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
                decoder_start_token_id=0, scale_decoder_outputs=True,
            )
        )  # fmt: skip
    else:
        model = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1,
                encoder_ffn_dim=16, decoder_ffn_dim=16,
                encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=24,
            )
        )  # fmt: skip
        model.final_logits_bias.uniform_(0, biased)
    model.eval()
    linear = chunked_cross_entropy.plain_head(model)
    assert (linear is None) == (biased > 0)
    if linear is None:
        return
    assert linear.weight is model.get_input_embeddings().weight
    ids, labels = torch.randint(50, (2, 9)), torch.randint(50, (2, 5))
    run = {"input_ids": ids, "decoder_input_ids": labels.roll(1, 1)}
    head = chunked_cross_entropy.head_input(model, lambda: model(**run))
    expected = reference(model(**run).logits, labels, 0.0)
    torch.testing.assert_close(chunked_cross_entropy.loss_sum(linear, head, labels), expected)


@pytest.mark.parametrize(
    "config",
    [
        transformers.Gemma2Config(**SMALL, final_logit_softcapping=0.02),
        transformers.CohereConfig(**SMALL, logit_scale=0.5),
    ],
)
def test_logits_that_are_more_than_a_product_stay_whole(config: Any) -> None:
    assert (
        chunked_cross_entropy.plain_head(transformers.AutoModelForCausalLM.from_config(config))
        is None
    )

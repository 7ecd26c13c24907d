"""A causal language model that is loaded once, and writes text."""

import copy
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from service.contract.failures import FailureCode, StageError
from service.contract.interactive.predictions import (
    ChatInput,
    Choice,
    GenerationOptions,
    PredictionRequest,
    PredictionResult,
    Usage,
)
from service.contract.stage.prediction_events import PredictorRequest
from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.preference import PreferenceSpec
from worker.data.table import RowError
from worker.inference import called_tools, model_folder
from worker.inference.writing import LogprobRecorder, Penalties, Writer, WriterFeed
from worker.tasks.chat import rows
from worker.tasks.chat.answers import DEFAULT_LIMIT
from worker.tasks.chat.problems import Problems
from worker.tasks.chat.rendering import Renderer
from worker.tasks.chat.templates import OPTION
from worker.tasks.chat.turns import turns_of
from worker.tasks.common.generation import end_tokens, fill_token
from worker.tasks.preference.text_generation import as_chat

_DEFAULT_NEW_TOKENS: Final = 2048
_CONTEXT: Final = 8
"""Tokens at the end of a prompt; with them what follows is decoded as the rest of a text."""
_OWN_DEFAULTS: Final = (
    *("bos_token_id", "eos_token_id", "repetition_penalty", "no_repeat_ngram_size"),
    *("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens"),
)
"""What counts of a model's own generation config. The rest are other ways to search, such as beams,
which do not give one row for each choice, and what the request's options replace."""
_GREEDY: Final = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
Written = Callable[[list[str]], None]


class _Prompt(NamedTuple):
    ids: list[int]
    turn_ends: frozenset[int] = frozenset()
    """Tokens that end a turn."""
    context: Sequence[int] = ()
    """Its last tokens, whose text the answer continues."""


class TextModel:
    def __init__(self, request: PredictorRequest) -> None:
        """StageError if the model cannot be used."""
        self._folder = model_folder.of_text_model(request)
        self._device = torch.device("cuda" if request.use_gpu else "cpu")
        self._parameters = _chat_parameters(request)
        self._peft = request.stage.spec.peft if self._folder.adapter is not None else None
        self._renderer: Renderer | None = None
        self._model = self._load()

    def answer(
        self, asked: PredictionRequest, written: Written, is_stopped: Callable[[], bool]
    ) -> PredictionResult:
        """`written` is called with the texts so far, after each token. StageError for a request
        that the model cannot answer."""
        given = asked.input
        assert given.kind != "rows", "rows are for a Predictor"
        if isinstance(given, ChatInput):
            prompt = self._chat_prompt(given)
        else:
            prompt = self._prompt(given.prompt)
        writers = self._generate(prompt, asked.options, written, is_stopped)
        choices = [writer.choice() for writer in writers]
        if isinstance(given, ChatInput):
            choices = [_with_message(choice, has_tools=bool(given.tools)) for choice in choices]
        count = sum(len(writer.ids) for writer in writers)
        return PredictionResult(
            choices=choices, usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=count)
        )

    # ---- the model ------------------------------------------------------------------------------

    def _load(self) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._folder.weights,
            config=self._folder.config,
            dtype="auto",
            use_safetensors=True,
            local_files_only=True,
        )
        # `generate` fills what a request leaves open from here, so the rest is left out here.
        given = {name: getattr(model.generation_config, name, None) for name in _OWN_DEFAULTS}
        own = {name: value for name, value in given.items() if value is not None}
        model.generation_config = GenerationConfig(**own)
        if self._folder.adapter is not None:
            from worker.training.adapters import adapter  # takes seconds

            model = adapter.load(model, self._folder.adapter, [])
        if self._device.type == "cpu" and model.dtype is torch.float16:
            model = model.float()  # what CPUs compute in float16 is slow
        return model.to(self._device).eval()

    # ---- the prompt -----------------------------------------------------------------------------

    def _chat_prompt(self, given: ChatInput) -> _Prompt:
        self._renderer = self._renderer or self._new_renderer()
        problems = Problems()
        try:
            turns = turns_of(given.messages, "messages", problems)
            conversation = rows.load(rows.cleaned(turns, len(turns), given.tools, problems))
            if conversation.answer < len(turns):
                raise RowError("the last message is the assistant's: nothing is left to answer")
            ids = self._renderer.prompt(conversation, given.chat_template_kwargs)
        except RowError as error:
            raise _refused(str(error)) from error
        if not ids:
            raise _refused("the chat template writes nothing for these messages")
        return _Prompt(ids, turn_ends=self._renderer.ends)

    def _new_renderer(self) -> Renderer:
        """StageError without a usable template."""
        try:
            return Renderer(self._folder.tokenizer, self._parameters)
        except StageError as error:
            raise _without_template(error) from error

    def _prompt(self, text: str) -> _Prompt:
        """Without the EOS token that some tokenizers add."""
        tokenizer = self._folder.tokenizer
        ids = list(tokenizer(text, verbose=False)["input_ids"])
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
            ids = ids[:-1]
        if not ids and tokenizer.bos_token_id is None:
            raise _refused("the prompt is empty, and the model has no token to start from")
        ids = ids or [int(tokenizer.bos_token_id)]
        return _Prompt(ids, context=ids[-_CONTEXT:])

    # ---- the text -------------------------------------------------------------------------------

    def _generate(
        self,
        prompt: _Prompt,
        options: GenerationOptions,
        written: Written,
        is_stopped: Callable[[], bool],
    ) -> list[Writer]:
        tokenizer = self._folder.tokenizer
        config = self._config(len(prompt.ids), prompt.turn_ends, options)
        ends = frozenset(end_tokens(config))
        writers = [Writer(tokenizer, ends, options.stop, prompt.context) for _ in range(options.n)]
        likely = None if options.logprobs is None else LogprobRecorder(tokenizer, options.logprobs)
        following = WriterFeed(writers, written, is_stopped, likely)
        processors = LogitsProcessorList([likely] if likely is not None else [])
        if options.presence_penalty or options.frequency_penalty:
            penalties = (options.presence_penalty, options.frequency_penalty)
            processors.append(Penalties(len(prompt.ids), *penalties))
        ids = torch.tensor([prompt.ids] * options.n, device=self._device)
        torch.manual_seed(options.seed or 0)
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                logits_processor=processors,
                stopping_criteria=StoppingCriteriaList([following]),
            )
        return writers

    def _config(
        self, prompt_tokens: int, turn_ends: frozenset[int], options: GenerationOptions
    ) -> GenerationConfig:
        """The model's own config with these options."""
        reserved = 0 if self._peft is None else self._peft.virtual_tokens
        positions = getattr(self._folder.config, "max_position_embeddings", None)
        limit = int(positions or DEFAULT_LIMIT) - reserved
        room = limit - prompt_tokens
        if room < 1:
            raise StageError(
                FailureCode.SEQUENCE_TOO_LONG,
                f"The prompt has {prompt_tokens:,} tokens, and the model has {limit:,} positions",
                action="Shorten the prompt.",
            )
        config: GenerationConfig = copy.deepcopy(self._model.generation_config)
        sampling = _GREEDY
        if options.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": options.temperature,
                "top_p": options.top_p,
                "top_k": options.top_k or 0,
            }
        new_tokens = min(options.max_new_tokens or _DEFAULT_NEW_TOKENS, room)
        config.update(**sampling, max_new_tokens=new_tokens, max_length=None)
        ends = sorted({*end_tokens(config), *turn_ends})
        config.eos_token_id = ends or None
        config.pad_token_id = fill_token(self._folder.tokenizer)
        return config


def _chat_parameters(request: PredictorRequest) -> ChatSpec:
    """Of the job's conversations; a base model has its tokenizer's template."""
    task = request.stage.spec.task
    if isinstance(task, PreferenceSpec):
        return as_chat(task)
    return task if isinstance(task, ChatSpec) else ChatSpec()


def _with_message(choice: Choice, *, has_tools: bool) -> Choice:
    message = called_tools.message_of(choice.text, secrets.token_hex(6), has_tools=has_tools)
    return choice.model_copy(update={"message": message})


def _refused(why: str) -> StageError:
    message = f"{why[:1].upper()}{why[1:]}".replace(f" (`{OPTION}`)", "")
    return StageError(FailureCode.INVALID_OPTION, message, action="Correct the request.")


def _without_template(error: StageError) -> StageError:
    """In the words of a request, which cannot set an option of a job."""
    failure = error.failure
    if failure.details.get("option") != OPTION:
        return error
    if "templates" in failure.details:
        return StageError(
            failure.code,
            "The model has no chat template, which turns messages into text",
            action="Ask it for a completion of a text (POST /v1/completions), or ask a model for "
            "chat, such as an -Instruct one.",
        )
    message = failure.message.replace(f"`{OPTION}`", "The model's chat template")
    action = "Correct `chat_template` in the model's folder, or ask another model."
    return StageError(failure.code, message, action=action)

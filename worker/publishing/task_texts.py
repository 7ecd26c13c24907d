"""The text of a model card about each task: code that uses the model, and the model's limits."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class TaskText:
    """A card's text about a task. `usage` is Python code in which `usage_code` replaces each
    `{name}` with a literal."""

    usage: str
    limits: str
    pipeline: str | None = None
    """The Hub's name for the task, if it differs from ours."""
    source: str = ""
    """The example's text, which follows the prefix of the job."""


_GENERATE: Final = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForSeq2SeqLM.from_pretrained("{model}").eval()

text = "{text}"
encoded = tokenizer(
    text, truncation=True, max_length={max_source_length}, return_tensors="pt"
)
tokens = model.generate(
    input_ids=encoded["input_ids"],
    attention_mask=encoded["attention_mask"],
    max_length={max_target_length},
)
print(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])
"""

_ANSWER: Final = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForCausalLM.from_pretrained("{model}").eval()

messages = [{"role": "user", "content": "Who wrote the report?"}]
encoded = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
tokens = model.generate(**encoded, max_new_tokens=256)
answer = tokens[0, encoded["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))
"""

_OF_SPANS: Final = (
    "It marks a span of the given text as the answer; it knows nothing beyond that text "
    "and does not reason over it. Passages longer than its window must be cut into "
    "overlapping windows, as was done in training."
)

TASK_TEXTS: Final[dict[str, TaskText]] = {
    "question-answering": TaskText(
        usage="""\
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForQuestionAnswering.from_pretrained("{model}").eval()

question = "Who wrote the report?"
context = "The report was written by Ada in 1843."
encoded = tokenizer(
    question,
    context,
    truncation="only_second",
    max_length={max_seq_length},
    return_offsets_mapping=True,
    return_tensors="pt",
)
offsets = encoded.pop("offset_mapping")[0]
with torch.no_grad():
    output = model(**encoded)

# Answers lie in the context: of all spans there, the one with the highest sum of scores.
in_context = torch.tensor([part == 1 for part in encoded.sequence_ids(0)])
outside = ~(in_context[:, None] & in_context[None, :])
scores = output.start_logits[0][:, None] + output.end_logits[0][None, :]
scores = scores.masked_fill(outside, float("-inf"))
spans = torch.triu(torch.ones_like(scores)).tril({max_answer_length} - 1) == 0
best = int(scores.masked_fill(spans, float("-inf")).argmax())
start, end = divmod(best, scores.shape[1])
answer = context[int(offsets[start][0]) : int(offsets[end][1])]
print(answer)
""",
        limits=_OF_SPANS,
    ),
    "text-classification": TaskText(
        usage="""\
from transformers import pipeline

classify = pipeline("text-classification", model="{model}", top_k=None)
print(classify("The report was written by Ada in 1843."))
# Of a pair: classify({"text": "The first text.", "text_pair": "The second text."})
""",
        limits=(
            "It knows only the labels it was trained with and answers with one of them for any "
            "text. Texts longer than it was trained on are cut."
        ),
    ),
    "token-classification": TaskText(
        usage="""\
from transformers import pipeline

tag = pipeline("token-classification", model="{model}", aggregation_strategy="first")
print(tag("The report was written by Ada in 1843."))
""",
        limits=(
            "It knows only the tags it was trained with. It was trained on one tag a word, for "
            "words split as in its training data; of words split otherwise it may know less."
        ),
    ),
    "causal-lm": TaskText(
        usage="""\
from transformers import pipeline

write = pipeline("text-generation", model="{model}")
print(write("The report was written by", max_new_tokens=40)[0]["generated_text"])
""",
        limits=(
            "It continues a text as its training data would; what it writes may be wrong, however "
            "fluent it reads."
        ),
        pipeline="text-generation",
    ),
    "masked-lm": TaskText(
        usage="""\
from transformers import pipeline

fill = pipeline("fill-mask", model="{model}")
print(fill(f"The report was {fill.tokenizer.mask_token} by Ada in 1843."))
""",
        limits=(
            "It fills single gaps in a text. For anything else, such as classifying texts, it has "
            "to be trained further."
        ),
        pipeline="fill-mask",
    ),
    "question-answering/beam-search": TaskText(
        usage="""\
import torch
from transformers import AutoTokenizer, XLNetForQuestionAnswering

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = XLNetForQuestionAnswering.from_pretrained("{model}").eval()

question = "Who wrote the report?"
context = "The report was written by Ada in 1843."
encoded = tokenizer(
    context,
    question,
    truncation="only_first",
    max_length={max_seq_length},
    return_offsets_mapping=True,
    return_token_type_ids=True,
    return_tensors="pt",
)
offsets = encoded.pop("offset_mapping")[0]
in_context = torch.tensor([part == 0 for part in encoded.sequence_ids(0)])
null = encoded["input_ids"][0].tolist().index(tokenizer.cls_token_id)
outside = (~in_context).float()
outside[null] = 0.0
with torch.no_grad():
    output = model(**encoded, p_mask=outside[None], cls_index=torch.tensor([null]))

# Some ends for each of the best starts; of all spans in the context, the likeliest.
starts, start_scores = output.start_top_index[0], output.start_top_log_probs[0]
ends = output.end_top_index[0].reshape(-1, len(starts))
end_scores = output.end_top_log_probs[0].reshape(-1, len(starts))
spans = [
    (float(start_scores[s] + end_scores[e, s]), int(starts[s]), int(ends[e, s]))
    for s in range(len(starts))
    for e in range(len(ends))
    if in_context[starts[s]] and 0 <= ends[e, s] - starts[s] < {max_answer_length}
]
_score, start, end = max(spans)
answer = context[int(offsets[start][0]) : int(offsets[end][1])]
print(answer)
""",
        limits=_OF_SPANS,
    ),
    "summarization": TaskText(
        usage=_GENERATE,
        source="A long text. It says many things, and some of them twice.",
        limits=(
            "It writes what summaries looked like in its training data; what it writes may not "
            "be in the text. Longer texts than it was trained on are cut."
        ),
    ),
    "translation": TaskText(
        usage=_GENERATE,
        source="The report was written by Ada in 1843.",
        limits=(
            "It translates between the languages, and the kinds of text, that it was trained on; "
            "fluent output may still be wrong. Longer texts than it was trained on are cut."
        ),
    ),
    "preference": TaskText(
        usage=_ANSWER,
        limits=(
            "It prefers answers like those that its training data calls better; what it says may "
            "still be wrong. Preferences other than those of its data were not taught."
        ),
        pipeline="text-generation",
    ),
    "reward": TaskText(
        usage="""\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForSequenceClassification.from_pretrained("{model}").eval()

messages = [
    {"role": "user", "content": "Who wrote the report?"},
    {"role": "assistant", "content": "Ada wrote it in 1843."},
]
encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")
with torch.no_grad():
    print(model(**encoded).logits[0, 0].item())
""",
        limits=(
            "Its scores rank answers to the same question as its training data would; a single "
            "score means nothing, and answers can be written to please it."
        ),
        pipeline="text-classification",
    ),
    "chat": TaskText(
        usage=_ANSWER,
        limits=(
            "It answers as the assistant of its training conversations would; what it says may be "
            "wrong, however sure it sounds. It was not trained to refuse harmful requests unless "
            "its base model or its data taught it."
        ),
        pipeline="text-generation",
    ),
}

"""The characters of the assistant's turns in a rendered conversation."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.data.table import JobEndingRowError, RowError
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.jinja import Spans, Template

REMEDY: Final = (
    "use a template that marks the assistant's turns with {% generation %}, such as one of ours "
    "(`task.chat_template`)"
)
_MOST_PREFIXES: Final = 1000
_STANDS_FOR_CONTENT: Final = "\ue000the content of the turn\ue000"


@dataclass(frozen=True)
class Whole:
    """A whole conversation as text."""

    template: Template
    messages: Sequence[Message]
    """As the template gets them."""
    conversation: Conversation
    text: str
    marks: Spans
    ends: Sequence[str]
    """Texts of the tokens that can end a turn."""

    def spans(self, places: Sequence[int]) -> Sequence[Iterable[tuple[int, int]]]:
        """For each of these turns of the assistant the spans it can have; the first that ends with
        the end of a turn is right. Raises RowError, also later, for a turn that has none."""
        if self.template.marks_answers:
            return self._marked(places)
        if len(places) > _MOST_PREFIXES:
            count = f"has {len(places):,} turns of the assistant, more than {_MOST_PREFIXES:,}"
            raise RowError(f"{count}: {REMEDY}", reason="too_many_turns")
        return [self._by_prefixes(place) for place in places]

    def _marked(self, places: Sequence[int]) -> list[Spans]:
        answers, marks = answers_of(self.conversation), self.marks
        if len(marks) > len(answers):
            marks = _joined(marks)
        if len(marks) != len(answers):
            raise RowError(
                f"the chat template marks {len(marks)} passages with {{% generation %}} for "
                f"{len(answers)} turns of the assistant; each turn needs one",
                reason="unmarked_turn",
            )
        marked = dict(zip(answers, marks, strict=True))
        return [[marked[place]] for place in places]

    def _by_prefixes(self, place: int) -> Iterator[tuple[int, int]]:
        """From the opening of the turn on, as far as the whole agrees with what ends with it; or to
        the end of its content, if the whole has less of a turn that others follow (thinking)."""
        opening = self._opening(place)
        first, is_found = len(opening), False
        for end in self._ends(place, first) if self.text.startswith(opening) else ():
            if end > first:
                is_found = True
                yield first, end
        if not is_found:
            raise RowError(
                f"messages[{place}]: the chat template writes the conversation up to this turn "
                f"otherwise than the same turns within the whole: {REMEDY}",
                reason="not_a_prefix",
            )

    def _opening(self, place: int) -> str:
        """What comes before the turn, up to the first character that the assistant writes."""
        try:
            return self.template.render(self.messages[:place], self.conversation, opens=True)[0]
        except JobEndingRowError:
            raise
        except RowError as error:
            raise RowError(
                f"messages[{place}]: {error}, when it is given only the turns before this one: "
                f"{REMEDY}",
                reason=error.reason,
            ) from error

    def _ends(self, place: int, first: int) -> Iterator[int]:
        ending, _ = self.template.render(self.messages[: place + 1], self.conversation)
        yield _agreed(ending, self.text)
        end = self._end_of_content(place, first)
        if end is not None:
            yield end

    def _end_of_content(self, place: int, first: int) -> int | None:
        """The end of the turn whose content is found by putting other words in its place."""
        content = self.messages[place].get("content")
        if content is None:
            return None
        changed = [*self.messages]
        changed[place] = {**self.messages[place], "content": _STANDS_FOR_CONTENT}
        text, _ = self.template.render(changed, self.conversation)
        before, _, after = text.partition(_STANDS_FOR_CONTENT)
        end = len(self.text) - len(after)
        framed = self.text.startswith(before) and self.text.endswith(after)
        if not framed or not first <= len(before) < end:
            return None
        if self.text[len(before) : end] not in content:
            return None
        rest = after.lstrip()
        close = next((text for text in self.ends if rest.startswith(text)), None)
        return None if close is None else end + len(after) - len(rest) + len(close)


def answers_of(conversation: Conversation) -> list[int]:
    return [n for n, turn in enumerate(conversation.messages) if turn["role"] == "assistant"]


def _joined(marks: Spans) -> Spans:
    """Passages without anything between them are one: Phi-3's template marks the last turn, and the
    end of the text once more."""
    found = list(marks[:1])
    for start, end in marks[1:]:
        if start == found[-1][1]:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _agreed(one: str, other: str) -> int:
    """The length of the longest common prefix."""
    if other.startswith(one):
        return len(one)
    longest = min(len(one), len(other))
    return bisect_left(range(longest), 1, key=lambda last: one[: last + 1] != other[: last + 1])

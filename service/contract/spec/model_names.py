"""Names of fine-tuned models: `ft:<base>:<project>:<suffix>:<job id>[:ckpt-step-<step>]`.

Only the job id and the step identify a model; the other parts are for people to read.
"""

import re
from typing import Final, NamedTuple

PREFIX: Final = "ft:"
_LONGEST_PART: Final = 64
_LONGEST_NAME: Final = 512
_NAME: Final = re.compile(r"ft:[^\x00-\x1f]*:(job-[0-9a-f]{1,36})(?::ckpt-step-([0-9]{1,10}))?")
_LARGEST_STEP: Final = 2**31 - 1
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]+")


class FineTuned(NamedTuple):
    job_id: str
    step: int | None
    """Of a checkpoint; None: the job's finished model."""


def fine_tuned(
    base: str, project: str, suffix: str | None, job_id: str, step: int | None = None
) -> str:
    """The name of a job's model, or of its checkpoint at `step`; `base` may be a path.

    Its parts have only letters, digits, `.`, `_` and `-`, so that the name fits in a URL.
    """
    last = re.split(r"[/\\]", base.rstrip("/\\"))[-1]
    parts = [_plain(last), _plain(project), _plain(suffix or ""), job_id]
    if step is not None:
        parts.append(f"ckpt-step-{step}")
    return PREFIX + ":".join(parts)


def parse(text: str) -> FineTuned | None:
    """The job and the step that the name identifies; None for any other text."""
    found = _NAME.fullmatch(text) if len(text) <= _LONGEST_NAME else None
    if found is None:
        return None
    step = None if found[2] is None else int(found[2])
    if step is not None and step > _LARGEST_STEP:
        return None
    return FineTuned(found[1], step)


def _plain(part: str) -> str:
    return _UNUSUAL.sub("-", part)[:_LONGEST_PART]

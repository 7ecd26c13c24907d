"""What the rest of the API needs to know about this face; `create_app` hands it in."""

from typing import Final

from service.api.openai import errors, result_files
from service.api.openai.schemas.chat_request import ChatCompletionRequest
from service.api.openai.schemas.completion_request import CompletionRequest
from service.api.openai.schemas.fine_tuning import OpenAIError
from service.api.problems.face import Face

FACE: Final = Face(errors, result_files, (OpenAIError, ChatCompletionRequest, CompletionRequest))

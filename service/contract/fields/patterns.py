"""The patterns of names and ids, with words for each: no error shows a regular expression."""

from typing import Final

JOB_ID: Final = r"^job-[0-9a-f]{1,36}$"
FILE_ID: Final = r"^file-[A-Za-z0-9]{1,64}$"
FILE_ID_PREFIX: Final = r"^file-[0-9a-f]{1,64}$"
UPLOAD_ID: Final = r"^upload-[0-9a-f]{1,32}$"
PART_ID: Final = r"^part-[0-9a-f]{1,32}$"
MD5: Final = r"^[0-9A-Fa-f]{32}$"
HUB_REPOSITORY: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"
LICENSE: Final = r"^[a-z0-9.-]{1,64}$"
METADATA_KEY: Final = r"^[A-Za-z0-9._-]{1,64}$"
SET_NAME: Final = r"^[A-Za-z0-9_-]{1,64}$"
REGISTERED_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
MODEL_ALIAS: Final = r"^[A-Za-z0-9_-]+$"
ONE_LINE: Final = r"^[^\x00-\x1f\x7f]+$"
PROJECT_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$"
NO_NUL: Final = r"^[^\x00]*$"
IDEMPOTENCY_KEY: Final = r"^[\x21-\x7e]+$"
SECRET_NAME: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
AUDIT_ID: Final = r"^audit-[0-9a-f]{1,34}$"
WEBHOOK_URL: Final = r"^https?://[\x21-\x7e]{1,2040}$"
WEBHOOK_ID: Final = r"^webhook-[0-9a-f]{32}$"
DELIVERY_ID: Final = r"^delivery-[0-9a-f]{32}$"
SEARCH_ID: Final = r"^search-[0-9a-f]{1,32}$"
ALLOCATOR: Final = r"^(auto|system|/[^\s:]+)$"
FIELD_PATH: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
LOG_FORMAT: Final = "^(console|json)$"
SANDBOX_LAYERS: Final = "^(landlock|namespaces)(,(landlock|namespaces))?$"

# After "must be".
WORDS: Final[dict[str, str]] = {
    JOB_ID: "a job id (job-…)",
    FILE_ID: "a file id (file-…)",
    FILE_ID_PREFIX: "the beginning of a file id (file-…)",
    UPLOAD_ID: "an upload id (upload-…)",
    PART_ID: "a part id (part-…)",
    MD5: "an MD5 checksum of 32 hex digits",
    HUB_REPOSITORY: "a repository id (`name` or `namespace/name`) of letters, digits, `-`, `_` and "
    "`.`",
    LICENSE: "a licence id of lower-case letters, digits, `-` and `.`, such as `apache-2.0`",
    METADATA_KEY: "1 to 64 letters, digits, `-`, `_` or `.`",
    SET_NAME: "1 to 64 letters, digits, `-` or `_`",
    REGISTERED_NAME: "letters, digits, spaces, `-`, `_` and `.`, the first a letter or a digit",
    MODEL_ALIAS: "letters, digits, `-` and `_`",
    ONE_LINE: "text in one line, without control characters",
    PROJECT_NAME: "lower-case letters, digits, `-` and `_`, the first a letter or a digit",
    NO_NUL: "text without NUL characters",
    IDEMPOTENCY_KEY: "visible ASCII characters without spaces",
    SECRET_NAME: "1 to 64 lower-case letters, digits, `-`, `_` and `.`, the first a letter or a "
    "digit",
    AUDIT_ID: "an id of the audit log (audit-…)",
    WEBHOOK_URL: "a URL (https://…) of visible ASCII characters",
    WEBHOOK_ID: "a webhook's id (webhook-…)",
    DELIVERY_ID: "a delivery's id (delivery-…)",
    SEARCH_ID: "a search's id (search-…)",
    FIELD_PATH: "names of fields with dots in between, such as training.learning_rate",
    ALLOCATOR: "`auto`, `system` or the absolute path of a library",
    LOG_FORMAT: "`console` or `json`",
    SANDBOX_LAYERS: "`landlock`, `namespaces` or both, with a comma in between",
}

"""Define errors as in ClickHouse's HTTP interface: an exception code, a message and an HTTP status."""

import re

SYNTAX_ERROR = 62
BAD_ARGUMENTS = 36
UNKNOWN_FORMAT = 73
UNKNOWN_DATABASE = 81
READONLY = 164
SESSION_NOT_FOUND = 372
SESSION_IS_LOCKED = 373
INVALID_SESSION_TIMEOUT = 374
ACCESS_DENIED = 497
AUTHENTICATION_FAILED = 516
UNKNOWN_EXCEPTION = 1002

# As in ClickHouse's HTTPHandler: 4xx for the client's errors, 500 for all others.
_STATUS = {
    AUTHENTICATION_FAILED: 403,
    ACCESS_DENIED: 403,
    READONLY: 400,
    SYNTAX_ERROR: 400,
    BAD_ARGUMENTS: 400,
    6: 400,  # CANNOT_PARSE_TEXT
    26: 400,  # CANNOT_PARSE_QUOTED_STRING
    27: 400,  # CANNOT_PARSE_INPUT_ASSERTION_FAILED
    38: 400,  # CANNOT_PARSE_DATE
    41: 400,  # CANNOT_PARSE_DATETIME
    43: 400,  # ILLEGAL_TYPE_OF_ARGUMENT
    53: 400,  # TYPE_MISMATCH
    72: 400,  # CANNOT_PARSE_NUMBER
    456: 400,  # UNKNOWN_QUERY_PARAMETER
    16: 404,  # NO_SUCH_COLUMN_IN_TABLE
    46: 404,  # UNKNOWN_FUNCTION
    47: 404,  # UNKNOWN_IDENTIFIER
    50: 404,  # UNKNOWN_TYPE
    60: 404,  # UNKNOWN_TABLE
    INVALID_SESSION_TIMEOUT: 400,
    UNKNOWN_FORMAT: 404,
    UNKNOWN_DATABASE: 404,
    115: 404,  # UNKNOWN_SETTING
}
_CODE = re.compile(r"Code:\s*(\d+)")


class StoreError(Exception):
    """A failed request, with ClickHouse's exception code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """ClickHouse's HTTP status for this code."""
        return _STATUS.get(self.code, 500)

    def __str__(self) -> str:
        text = self.message if _CODE.match(self.message) else f"Code: {self.code}. DB::Exception: {self.message}"
        return text.rstrip() + "\n"

    @classmethod
    def of(cls, error: BaseException) -> "StoreError":
        """Convert an exception of the engine; drops the Python binding's text before ClickHouse's message."""
        if isinstance(error, cls):
            return error
        text = str(error)
        code = _CODE.search(text)
        if code is None:
            return cls(UNKNOWN_EXCEPTION, text or type(error).__name__)
        return cls(int(code[1]), text[code.start() :])

"""A refusal: why a request is not served, in the shape that OpenAI's clients read."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["Refusal"]


class Refusal(Exception):
    """Why a request is not served: a status of HTTP, and one sentence.

    Attributes:
        message: what was received and what was expected.
        status: of HTTP.
        kind: OpenAI's class of errors.
        param: the field at fault, as a path such as ``messages[1].content``; None where it is none in particular.
        code: a word for programs; None for none.
        headers: to be sent with it.

    >>> Refusal("n is 0; expected 1 to 16", param="n").body()
    {'error': {'message': 'n is 0; expected 1 to 16', 'type': 'invalid_request_error', 'param': 'n', 'code': None}}
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.param, self.code, self.headers = message, status, kind, param, code, headers

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

"""The fields of a form that somebody sends."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

LARGEST_BYTES = 16_384
"""Ten times the longest reason. Whoever sends a form has not signed in yet: a larger one must not take our memory."""
ENCODING = "application/x-www-form-urlencoded"


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, as our pages and `curl -d` send it; raise `HTTPException` for any other body.

    Other encodings are for files. They also let the sender name the codec of a field, and some codecs take minutes.
    """
    kind = request.headers.get("content-type", ENCODING).partition(";")[0].strip().lower()
    if kind != ENCODING:
        raise HTTPException(415, f"Send the form as {ENCODING}.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BYTES:
            raise HTTPException(413, f"A form has at most {LARGEST_BYTES} bytes.")
    return dict(parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True))

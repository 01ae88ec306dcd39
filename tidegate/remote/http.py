"""What may be wrong with a request over HTTP, in one name."""

from __future__ import annotations

import httpx

HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL)
"""What httpx raises if there is no answer, if the answer is an error, and if the address is no URL."""

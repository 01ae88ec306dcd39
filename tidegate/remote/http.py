"""What may be wrong with a request over HTTP, in one name, and how httpx answers a server that asks for Kerberos."""

from __future__ import annotations

from collections.abc import Generator

import httpx

from tidegate.remote.kerberos import KerberosError, asks, authorization

HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL, KerberosError)
"""What is raised if there is no answer, if the answer is an error, if the address is no URL, and without a ticket."""


class Negotiate(httpx.Auth):
    """Sends a ticket to each server that asks for one; those get no `user.name`, because the ticket says who asks.

    The others get no cookie: Hadoop makes one of the first `user.name` that it sees, and believes it rather than later
    ones.
    """

    def __init__(self) -> None:
        self._hosts: set[str] = set()
        """Those that have asked."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Answer the server, and also the one that it redirects to."""
        if request.url.host in self._hosts:
            request.url = request.url.copy_remove_param("user.name")
        else:
            request.headers.pop("cookie", None)
        answered: set[str] = set()
        response = yield request
        while asks(response.status_code, response.headers.get("www-authenticate")):
            request, host = response.request, response.url.host
            if host in answered:  # the ticket was refused
                return
            answered.add(host)
            self._hosts.add(host)
            request.url = request.url.copy_remove_param("user.name")
            request.headers["Authorization"] = authorization(host)
            response = yield request

"""Connections that the decider makes itself; those of librdkafka have their own settings."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts this authority, or those that the system knows if there is none.

    It checks what librdkafka and Java check. Since Python 3.13 the default is to refuse certificates without an
    Authority Key Identifier as well, which many private authorities leave out.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context

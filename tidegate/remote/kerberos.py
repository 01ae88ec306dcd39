"""Kerberos over HTTP (SPNEGO, RFC 4559): what a service of Hadoop is sent when it asks for it.

The ticket is that of the process, as MIT's library finds it: in the cache of `KRB5CCNAME`, or got, and renewed in time,
with the keytab of `KRB5_CLIENT_KTNAME`. A server that knows us sets a cookie, so it asks only once in some hours.
"""

from __future__ import annotations

import base64

_SPNEGO = "1.3.6.1.5.5.2"
_KEYTAB = "set KRB5_CLIENT_KTNAME to a keytab, with which tickets are renewed, or run kinit"
_REMEDIES = {
    "No Kerberos credentials available": _KEYTAB,
    "expired": _KEYTAB,
    "Client ": "use a keytab of a principal that the realm has",
    "Decrypt integrity check failed": "the principal has a new key: export its keytab again",
    "Server ": "the address must name the host as its principal HTTP/HOST does",
    "Cannot contact any KDC": "check that the KDC runs and can be reached",
    "Cannot find KDC": "name the realm's KDC in krb5.conf",
    "Clock skew": "let both machines get their time from the same servers",
}
"""What to do, by how Kerberos' own words start or what they contain."""


class KerberosError(OSError):
    """There is no ticket for a server that asks for one; the text says why, and what to do."""


def asks(status: int, challenge: str | None) -> bool:
    """Whether an answer, with that `WWW-Authenticate`, asks for Kerberos."""
    return status == 401 and challenge is not None and "negotiate" in challenge.lower()  # noqa: PLR2004


def authorization(host: str) -> str:
    """Return the `Authorization` for one request to a host; raise `KerberosError`."""
    what = f"{host} asks for Kerberos"
    try:
        import gssapi  # noqa: PLC0415 - the extra `kerberos`
    except ImportError as error:
        raise KerberosError(f"{what}: {error}; install it: pip install 'tidegate[kerberos]'") from None
    try:
        ticket = gssapi.Credentials(usage="initiate", mechs=[gssapi.MechType.kerberos])
        server = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        mech = gssapi.OID.from_int_seq(_SPNEGO)
        token = gssapi.SecurityContext(name=server, creds=ticket, usage="initiate", mech=mech).step()
    except gssapi.exceptions.GSSError as error:
        said = str(error).partition("Minor (")[2].partition("): ")[2].strip()
        if isinstance(error, gssapi.exceptions.ExpiredCredentialsError):
            said = "Ticket expired"  # of which the library says no more than Success
        remedy = next((f"; {remedy}" for words, remedy in _REMEDIES.items() if words in said), "")
        raise KerberosError(f"{what}: {said}{remedy}") from None
    return f"Negotiate {base64.b64encode(token).decode()}"

"""The Redis of the services."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tidegate.cli.doctor.finding import Finding, Verdict
from tidegate.client import ClientSettings
from tidegate.runtime.redis_server import remedy_of
from tidegate.runtime.settings import without_login


def redis_of(settings: ClientSettings) -> Finding:
    """Check the Redis that the settings name."""
    import redis  # noqa: PLC0415 - few commands need it, and it takes long to import

    from tidegate.remote.redis_client import RedisClient  # noqa: PLC0415 - likewise

    url = without_login(settings.redis_url)
    remedy = "set TIDEGATE_REDIS_URL and TIDEGATE_REDIS_PASSWORD as for the services"
    try:
        with RedisClient(**{**settings.redis(), "socket_timeout": 3, "socket_connect_timeout": 3}) as client:
            server = client.reach(client.info)
            if _in_cluster_mode(server):
                with suppress(redis.exceptions.NoPermissionError):  # without +cluster|info, the services' logs tell
                    server |= client.execute_command("CLUSTER INFO")
    except redis.AuthenticationError as error:
        return Finding("fail", "Redis", f"{url}: {error}", remedy)
    except (redis.RedisError, ValueError) as error:  # the latter for a port that is no number
        return Finding("fail", "Redis", f"{url}: {error}", remedy_of(error) or remedy)
    # Valkey's `redis_version` is that of the Redis it replaces, and its mode has another name
    version = f"Valkey {server['valkey_version']}" if "valkey_version" in server else server["redis_version"]
    verdict, found, remedy = _judged(server, has_password=bool(settings.redis_password))
    return Finding(verdict, "Redis", f"{version} at {url}{found}", remedy)


def _judged(server: Mapping[str, object], *, has_password: bool) -> tuple[Verdict, str, str]:
    """Judge a Redis by what it says of itself: return a verdict, what is found, and what to do."""
    policy = server.get("maxmemory_policy", "noeviction")
    clustered = _in_cluster_mode(server)
    if server.get("cluster_state", "ok") != "ok":
        remedy = "CLUSTER NODES shows which nodes lack: it needs most of its primaries, and one for every slot"
        return "fail", f" is in a cluster whose state is {server['cluster_state']}, so no job is rescaled", remedy
    if server.get("role") == "slave" and not clustered:  # in a cluster it names the primary
        remedy = "set TIDEGATE_REDIS_URL to an address that leads to the primary"
        return "fail", f" is a replica of {server.get('master_host')}, on which no job is rescaled", remedy
    if server.get("maxmemory") and policy != "noeviction":
        remedy = "set maxmemory-policy to noeviction"
        return "warn", f" may drop reservations when its memory is full (maxmemory-policy {policy})", remedy
    if not has_password:
        return "warn", ", which needs no password", "set a password in Redis"
    return "ok", f"{' in cluster mode' if clustered else ''}, password accepted", ""


def _in_cluster_mode(server: Mapping[str, object]) -> bool:
    return "cluster" in (server.get("redis_mode"), server.get("server_mode"))

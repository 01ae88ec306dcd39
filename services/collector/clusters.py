"""Asks about a cluster whoever knows: a standalone master over HTTP, or the API of Kubernetes."""

from __future__ import annotations

from services.collector.kubernetes import PREFIX, KubernetesClusters
from services.collector.master import HttpMaster
from services.collector.sources import JobsCluster


class Clusters:
    """All kinds of clusters."""

    def __init__(self, masters: HttpMaster, kubernetes: KubernetesClusters) -> None:
        self._masters = masters
        self._kubernetes = kubernetes

    async def view(self, place: str) -> JobsCluster:
        """Return the state of the cluster at a place: the URL of a master's page, or `kubernetes:NAMESPACE`."""
        if place.startswith(PREFIX):
            return await self._kubernetes.view(place.removeprefix(PREFIX))
        return await self._masters.view(place)

    async def close(self) -> None:
        """Close the connections."""
        self._kubernetes.close()
        await self._masters.close()

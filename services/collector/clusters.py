"""Asks about a cluster whoever knows: a standalone master or a ResourceManager over HTTP, or the API of Kubernetes."""

from __future__ import annotations

from collections.abc import Collection

from services.collector import kubernetes, yarn
from services.collector.kubernetes import KubernetesClusters
from services.collector.master import HttpMaster
from services.collector.sources import ClusterAnswer
from services.collector.yarn import YarnClusters


class Clusters:
    """All kinds of clusters."""

    def __init__(self, masters: HttpMaster, kubernetes: KubernetesClusters, yarn: YarnClusters) -> None:
        self._masters = masters
        self._kubernetes = kubernetes
        self._yarn = yarn

    async def view(self, place: str) -> ClusterAnswer:
        """Return the state of the cluster at a place, as `Application.cluster_place` names it."""
        if place.startswith(kubernetes.PREFIX):
            return await self._kubernetes.view(place.removeprefix(kubernetes.PREFIX))
        if place.startswith(yarn.PREFIX):
            return await self._yarn.view(place.removeprefix(yarn.PREFIX))
        return await self._masters.view(place)

    def keep(self, places: Collection[str]) -> None:
        """Forget all other places, and end their threads."""
        for prefix, clusters in ((kubernetes.PREFIX, self._kubernetes), (yarn.PREFIX, self._yarn)):
            clusters.keep({place.removeprefix(prefix) for place in places if place.startswith(prefix)})

    async def close(self) -> None:
        """Close the connections."""
        self._kubernetes.close()
        self._yarn.close()
        await self._masters.close()

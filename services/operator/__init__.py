"""The operator: StreamingJob objects of Kubernetes become job specs, and decisions become their status.

settings.py     what it is told
ports.py        what it needs of Kubernetes
resource.py     a StreamingJob as Kubernetes gives it; pure
places.py       which clusters and file systems an object may name; pure
reconcile.py    what is to be done for an object; pure
status.py       what its status says; pure
app.py          the loop that looks, decides and does
reflector.py    the objects, listed once and then watched
cluster.py      Kubernetes behind the port
"""

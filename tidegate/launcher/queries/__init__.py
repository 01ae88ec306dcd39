"""The queries of a run: how a script starts one, where it keeps its checkpoint, and which ones there are."""

"""The engine: pure, deterministic, shared. `tidegate.engine.decide.step` is its one entry point.

    snapshot -> evidence -> policy proposes -> guards dispose -> decision (+ command)

No clock, no I/O, no environment: all a decision depends on is handed in, and recorded inside the decision.
"""

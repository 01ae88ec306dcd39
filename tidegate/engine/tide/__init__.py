"""`tide`, the default policy: model-predictive, and the only one that is Tidegate's own."""

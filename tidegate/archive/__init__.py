"""The archive: all of Tidegate's topics as Parquet, by day, and the signed hash chain over their records."""

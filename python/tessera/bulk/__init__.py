"""Many documents through several servers into a folder of Parquet files: ``tessera encode``, on Ray Data."""

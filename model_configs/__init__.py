"""Model cards: one YAML file per model, read through `kvtool.catalog`."""

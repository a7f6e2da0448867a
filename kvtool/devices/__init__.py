"""Device cards: one YAML file per device, read through `kvtool.device`."""

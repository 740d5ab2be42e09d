"""What the pipeline tests share: overrides that make the study tiny."""

TINY = ["dataset=synthetic", "profile=smoke", "dataset.generator.n_servers=60", "dataset.generator.n_tasks=80"]

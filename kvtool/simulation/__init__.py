"""A run of `kvtool simulate`: options, plan, sweep over seeds and sizes, answers."""

"""Eviction policies, one file each; `replay` runs accesses through one."""

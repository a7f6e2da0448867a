"""Eviction policies, one file each, and the names they go by."""

"""Attention kernels, checked first and then timed beside their peers."""

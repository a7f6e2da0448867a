"""Attention kernels, importable as `kvtool.kernels`."""

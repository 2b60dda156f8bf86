"""Stands in for NVIDIA's cupti-python, which is not free software and needs a GPU."""

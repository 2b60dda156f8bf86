"""The timer ``cupti``."""

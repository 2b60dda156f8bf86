"""Plugins as a user would write them, for real processes: put this folder on their path."""

from pathlib import Path

PLUGIN_FOLDER = Path(__file__).parent

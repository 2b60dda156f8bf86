"""One module for each golden; each returns a dict of entries by name."""

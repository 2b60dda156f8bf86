"""The commands of this plugin, one module each."""

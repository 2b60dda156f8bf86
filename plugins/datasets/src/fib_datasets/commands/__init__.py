"""The commands of this plugin, a module each."""

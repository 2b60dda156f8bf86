"""What tests of several distributions share; their conftests import the fixtures from here."""

"""The conformance suite for builders."""

"""The environment that offers tools."""

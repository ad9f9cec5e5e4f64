"""Fuzz targets: one module for each parser of bytes from outside, with the properties that must hold for any input."""

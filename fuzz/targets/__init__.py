"""What is fuzzed: one module for each parser of bytes from outside, with what has to hold for any input."""

"""Keys of connectors and actions: base.py has what all types share, and one module each what a type has of its own."""

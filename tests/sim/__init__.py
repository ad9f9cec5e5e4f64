"""A seeded simulator of the real protocol core: fake clock, fake network, clients that come and go."""

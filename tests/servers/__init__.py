"""Real servers from Debian's packages: each on a free port, its data in a directory that goes away."""

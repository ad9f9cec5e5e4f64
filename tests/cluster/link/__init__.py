"""The data process of a link with real sockets and rings."""

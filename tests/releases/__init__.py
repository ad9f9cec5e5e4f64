"""This broker and earlier builds of it: each is made from its commit."""

"""Tests of the cluster cores, and their simulation."""

"""Hours of mixed traffic with restarts, outside CI: nothing may grow."""

"""The management plane: the manager process, its log lines and $SYS topics."""

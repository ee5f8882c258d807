"""The state of runs as files, after a task and inside one."""

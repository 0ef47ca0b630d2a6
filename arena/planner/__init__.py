"""The planner: what a job would do on each GPU group, and under which plan. Pure: no I/O, no clock."""

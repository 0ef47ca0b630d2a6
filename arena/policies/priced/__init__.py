"""The default policy: one allocation problem, solved by prices."""

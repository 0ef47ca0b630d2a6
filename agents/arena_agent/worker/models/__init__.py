"""The models that are trained, built one pipeline chunk at a time from the parameter table."""

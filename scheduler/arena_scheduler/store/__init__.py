"""The durable state: the only place that speaks SQL."""

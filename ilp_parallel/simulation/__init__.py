"""Plans played through event by event: under other schedules, given orders, and as objective."""

"""What is wrong with a job or a plan, why, and what would mend it."""

"""What users already have, read into one record: runs of training frameworks and of planners."""

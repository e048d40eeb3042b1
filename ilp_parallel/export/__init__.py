"""Plans written as the options of training frameworks; what one cannot express is an error."""

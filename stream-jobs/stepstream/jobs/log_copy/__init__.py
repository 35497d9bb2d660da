"""Copy the log to topics with another prefix and number of partitions."""

"""The services of Stepstream; they do not import each other."""

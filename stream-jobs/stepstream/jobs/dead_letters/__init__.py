"""Find dead letters, and send their records again after the fault is mended."""

"""Run the loop asynchronously and synchronously, on a virtual clock and on the real stack."""

"""Designs of tables for the same steps: of Stepstream, and in the shape of Langfuse's and TensorZero's."""

"""The gRPC client."""

"""gRPC services: translate requests to events and records to replies."""

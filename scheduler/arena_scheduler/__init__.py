"""The central server: gRPC services, store and the live world."""

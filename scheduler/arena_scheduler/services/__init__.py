"""The gRPC services: thin, they check, translate and ask."""

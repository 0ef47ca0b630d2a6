"""The wire: generated code, the codec to the domain, errors as gRPC statuses."""

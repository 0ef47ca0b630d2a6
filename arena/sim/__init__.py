"""The simulator: the engine on a virtual clock with modelled agents."""

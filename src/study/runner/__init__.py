"""How one row is made: inputs, outputs, identity, processes, provenance."""

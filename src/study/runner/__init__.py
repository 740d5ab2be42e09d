"""How one row is made: inputs, outputs, fingerprint, processes, provenance."""

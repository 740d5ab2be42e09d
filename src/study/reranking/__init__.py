"""Re-ranking the candidate pool of T2MRec (eq. 23): by a language model, or by a small listwise model without one."""

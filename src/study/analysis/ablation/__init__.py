"""Research question 2: what each part of T2MRec adds, and what training moves (Table 4, Figure 6)."""

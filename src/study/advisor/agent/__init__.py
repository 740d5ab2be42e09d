"""T2MAgent (paper, section 6): a conversation that ends in recommended servers, each statement with its evidence."""

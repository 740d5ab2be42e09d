"""What the notebooks show: tables, figures and the numbers behind them."""

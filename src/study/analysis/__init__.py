"""What the notebooks show, one folder per notebook: tables, figures and the numbers behind them."""

"""Real clients that write down what they did and what they were told, for the simulator's checkers."""

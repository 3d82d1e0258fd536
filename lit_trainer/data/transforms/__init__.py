"""What is done to rows anew each time they are drawn, such as masking tokens."""

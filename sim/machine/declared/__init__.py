"""What a topology file may say: its tables, and the values and the meaning of each key."""

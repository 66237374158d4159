"""How ranks come to know where frames begin: each walks over a part of a file, and a node keeps what all found once."""

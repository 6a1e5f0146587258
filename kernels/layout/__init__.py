"""How codes and scales lie in memory: nibble packing, the 128x4 scale swizzle."""
